"""The resources that Headrace reads or writes."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.api.common import GROUP, VERSION

Key = tuple[str, str]  # namespace, name


@dataclass(frozen=True)
class Resource:
    """A namespaced kind of the Kubernetes API."""

    group: str  # "" = core
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        """group/version, as objects carry it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path; `namespace` None = all namespaces."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part is not None]
        return "/".join(parts)


MODELS = Resource(GROUP, VERSION, "models", "Model")
SLOS = Resource(GROUP, VERSION, "servicelevelobjectives", "ServiceLevelObjective")
TENANTS = Resource(GROUP, VERSION, "tenants", "Tenant")
PROFILES = Resource(GROUP, VERSION, "parallelismprofiles", "ParallelismProfile")
CUSTOM = (MODELS, SLOS, TENANTS, PROFILES)

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
SERVICES = Resource("", "v1", "services", "Service")
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
CHILDREN = (DEPLOYMENTS, SERVICES, BUDGETS, NETWORK_POLICIES)

PODS = Resource("", "v1", "pods", "Pod")
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
HPAS = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")


def key_of(obj: dict[str, object]) -> Key:
    """(namespace, name) of an object."""
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        raise ValueError("an object without metadata has no key")
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")
