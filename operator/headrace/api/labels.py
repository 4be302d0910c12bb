"""Label keys and fixed names, on which selectors depend: they never change."""

MODEL = "headrace.dev/model"
ROLE = "headrace.dev/role"
ROLE_SERVE = "serve"
TRACK = "headrace.dev/track"
TRACK_STABLE = "stable"
REVISION = "headrace.dev/revision"
INSTALLATION = "headrace.dev/installation"
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "headrace"
COMPONENT = "app.kubernetes.io/component"
SERVICE_NAME = "kubernetes.io/service-name"

ENGINE_COMPONENT = "engine"  # no label of a user may make an engine's pod look like a gateway
ENGINE_CONTAINER = "engine"
FETCH_CONTAINER = "fetch"
ENGINE_PORT = 8000
GATEWAY_PORT = 8080
GATEWAY_STATE_PORT = 9090
OPERATOR_PORT = 8081


def field_manager(install_namespace: str) -> str:
    """The one field manager of an installation."""
    return f"headrace.{install_namespace}"


def model_selector(model: str) -> dict[str, str]:
    """Labels that select the serving pods of a model."""
    return {MODEL: model, ROLE: ROLE_SERVE}
