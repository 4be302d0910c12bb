"""May a Model be started? Its references, its parallelism and its memory, before anything is applied."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.api.conditions import ConditionType
from headrace.api.model import Model
from headrace.api.profile import ProfileSpec
from headrace.api.schedule import problems
from headrace.api.slo import SloSpec
from headrace.planning.memory import MemoryFit, fit_model
from headrace.planning.pods import plausible
from headrace.planning.reasons import Why
from headrace_wire.memory import ParallelismError
from headrace_wire.shape import ModelShape, builtin_shape


@dataclass(frozen=True)
class Refusal:
    """Why a Model is not started or changed; what runs is left alone."""

    reason: str
    message: str
    condition: ConditionType = ConditionType.ACCEPTED  # the one that is False


@dataclass(frozen=True, kw_only=True)
class References:
    """The objects that a Model refers to; None where it refers to none, or to one that does not exist."""

    slo: SloSpec | None = None
    profile: ProfileSpec | None = None


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What is known of a Model before it runs."""

    refusal: Refusal | None
    fit: MemoryFit | None  # None: the shape is not known
    references: References = field(default_factory=References)

    @property
    def startable(self) -> bool:
        """True where the workload may be applied."""
        return self.refusal is None


def known_shape(model: Model, fetched: ModelShape | None) -> ModelShape | None:
    """The shape of a Model: built in, as an init container found it, or as the status kept it of this very source."""
    source, kept = model.spec.source, model.status.source
    if source.scheme == "builtin":
        return builtin_shape(source.uri.split("://", 1)[1])
    if fetched is not None or kept is None or kept.shape is None or kept.uri != source.uri:
        return fetched
    shape = ModelShape(**kept.shape.model_dump())
    return shape if plausible(shape) else None


def judge(model: Model, references: References, shape: ModelShape | None) -> Judgement:
    """References, then parallelism, then memory; the first that fails refuses."""
    refusal = _missing(model, references) or _times(model) or _ranks(model, references.profile)
    fit: MemoryFit | None = None
    if shape is not None:
        try:
            fit = fit_model(model.spec, references.profile, shape)
        except ParallelismError as error:
            message = f"spec.parallelismRef: {error}: change {_profile(model)}"
            refusal = refusal or Refusal(Why.PARALLELISM_INVALID.value, message)
    if refusal is None and fit is not None and fit.fits is False:
        refusal = Refusal(fit.verdict.value, fit.message, ConditionType.MEMORY_FITS)
    return Judgement(refusal=refusal, fit=fit, references=references)


def _missing(model: Model, references: References) -> Refusal | None:
    spec = model.spec
    for path, kind, ref, found in (
        ("spec.serviceLevelRef.name", "ServiceLevelObjective", spec.service_level_ref, references.slo),
        ("spec.parallelismRef.name", "ParallelismProfile", spec.parallelism_ref, references.profile),
    ):
        if ref is not None and found is None:
            return Refusal(
                Why.REFERENCE_NOT_FOUND.value,
                f"{path}: no {kind} named {ref.name!r} in this namespace, or it is invalid: create it here "
                "(no reference crosses a namespace), or correct the name",
            )
    return None


def _times(model: Model) -> Refusal | None:
    scaling = model.spec.scaling
    found = next(problems(scaling.schedules, scaling.override), None)
    return None if found is None else Refusal(Why.INVALID_SPEC.value, found)


def _profile(model: Model) -> str:
    ref = model.spec.parallelism_ref
    return "the profile" if ref is None else f"spec.tensor or spec.pipeline of ParallelismProfile {ref.name}"


def _ranks(model: Model, profile: ProfileSpec | None) -> Refusal | None:
    if profile is None or profile.ranks == 1:
        return None
    return Refusal(
        Why.PARALLELISM_UNSUPPORTED.value,
        f"spec.parallelismRef: {profile.tensor} tensor x {profile.pipeline} pipeline = {profile.ranks} ranks; this "
        f"version starts engines of one rank: take the reference out, or set {_profile(model)} so that both are 1",
    )
