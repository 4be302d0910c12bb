"""The demo from its beginning to its end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cluster.addresses import check_name
from demo import burst, talk
from demo.story import Story
from demo.talk import DemoFailed
from rig.chat import Endpoint
from rig.install import CHARTS, ROOT, Key, install, new_key, set_keys
from rig.kube import Kube, WaitFailed, is_true, wait_until
from rig.world import World, check, claim, close_world, open_world, parts, prepare

INSTANCE = "demo"
RELEASE = "headrace"  # namespace of operator and gateway
TEAM = "team-a"  # namespace of the sample objects
SECRETS = ROOT / ".headrace"
SAMPLES = ("slo.yaml", "tenants.yaml", "profile.yaml", "model.yaml")


@dataclass(frozen=True)
class Step:
    """A step of the demo, as the plan tells it."""

    title: str
    about: str  # and how long it takes on two cores


MACHINE = Step(
    "What this machine needs",
    "Kubernetes compiled, torch fetched, images built; the first time about 15 min, later seconds",
)
CLUSTER = Step(
    "A Kubernetes",
    "yours if KUBECONFIG is set, else a single-node one of its own, and the images in it; the first time about 2 min, "
    "as 5 GB are imported, later 20 s",
)
CHARTS_IN = Step("Operator and gateway, by helm", "about 10 s")
OBJECTS = Step("A Model, its service levels and two Tenants", "about 10 s")
CHAT = Step("A chat", "and the ways of being told no; seconds")
BURST = Step("A burst that one replica cannot hold", "up to two replicas and back; about 4 min")


def up(name: str = INSTANCE, *, with_burst: bool = True, force: bool = False) -> None:
    """Run the demo, on the embedded instance `name` unless KUBECONFIG names a cluster.

    Raises ClusterError where another checkout runs that instance, unless `force`.
    """
    steps = steps_of(with_burst)
    story = Story(len(steps))
    check_name(name)
    check()
    if not force:
        claim(name)
    story.line(plan(steps, ending(name)))
    with story.step(MACHINE.title):
        prepare(parts())
    with story.step(CLUSTER.title):
        if not force:
            claim(name)  # minutes have passed
        world = open_world(name)
        story.result(world.kube.run("get", "nodes"))
    try:
        _show(story, world, key_file(name), with_burst)
        say_goodbye(story, world, name)
    except (DemoFailed, WaitFailed):
        world.kube.require()  # a cluster that was taken down explains it better
        raise


def steps_of(with_burst: bool) -> tuple[Step, ...]:
    """What is shown, in order."""
    return (MACHINE, CLUSTER, CHARTS_IN, OBJECTS, CHAT, *([BURST] if with_burst else []))


def plan(steps: tuple[Step, ...], end: str) -> str:
    """What is told before anything is begun; `end` is the command that removes it all."""
    listed = "\n".join(f"  {number} {step.title}: {step.about}" for number, step in enumerate(steps, 1))
    return (
        f"Headrace, from nothing to a streamed answer on a real Kubernetes (times of two cores):\n{listed}\n"
        f"It leaves all that running; `{end}` removes everything that it started."
    )


def _show(story: Story, world: World, secret: Path, with_burst: bool) -> None:
    with story.step(CHARTS_IN.title):
        install(world.kube, RELEASE, [TEAM], world.images, {})
        story.result(world.kube.run("get", "pods", "-n", RELEASE))
    with story.step(OBJECTS.title):
        keys = apply_samples(story, world.kube)
        keep(keys["search"], secret)
    with world.gateway(RELEASE) as url:
        search, guest = Endpoint(url, keys["search"].secret), Endpoint(url, keys["guest"].secret)
        with story.step(CHAT.title):
            talk.streamed_answer(story, search, as_told(secret))
            talk.refusals(story, search, guest)
        if with_burst:
            with story.step(BURST.title):
                load = world.endpoint_for_load(RELEASE, url, keys["search"].secret)
                burst.offer(story, world, burst.Place(RELEASE, TEAM), load)
    show_columns(story, world.kube)


def apply_samples(story: Story, kube: Kube) -> dict[str, Key]:
    """Apply the samples with fresh keys and wait until the Model is Ready."""
    for sample in SAMPLES:
        story.command(f"kubectl apply -n {TEAM} -f charts/samples/{sample}")
        story.result(kube.run("apply", "-n", TEAM, "-f", str(CHARTS / "samples" / sample)))
    keys = {tenant: new_key("demo") for tenant in ("search", "guest")}
    for tenant, key in keys.items():
        story.command(f"headrace key new --name demo   # its hash goes into Tenant {tenant}")
        set_keys(kube, TEAM, tenant, {"demo": key})
    story.command(f"kubectl wait -n {TEAM} --for=condition=Ready model/{talk.MODEL} --timeout=180s")
    story.result(
        kube.run("wait", "-n", TEAM, "--for=condition=Ready", f"model/{talk.MODEL}", "--timeout=180s", timeout=200)
    )
    for tenant in keys:
        wait_until(
            f"Tenant {tenant} is enforced by the gateway",
            lambda tenant=tenant: is_true(kube.get("tenant.headrace.dev", tenant, TEAM), "Enforced"),  # type: ignore[misc]
            within=30,
        )
    return keys


def show_columns(story: Story, kube: Kube) -> None:
    """The columns that tell the story."""
    story.command(f"kubectl get models,tenants,slo -n {TEAM}")
    story.result(kube.run("get", "models,tenants,slo", "-n", TEAM))


def key_file(name: str) -> Path:
    """Where the key of Tenant search is kept, one file for each instance. Raises ClusterError for an unfit name."""
    return SECRETS / f"{check_name(name)}-key"


def as_told(file: Path) -> Path:
    """A file of the checkout as its user names it there."""
    return file.relative_to(ROOT)


def keep(key: Key, file: Path) -> None:
    """Write a key where the user finds it, readable by its owner alone."""
    file.parent.mkdir(exist_ok=True)
    file.touch(mode=0o600)
    file.write_text(key.secret + "\n")


def down(name: str = INSTANCE, *, force: bool = False) -> None:
    """Remove what `up` has started, here and on the cluster. Raises ClusterError as `up` does."""
    secret = key_file(name)
    if not force:
        claim(name)
    close_world(name, releases=[RELEASE], namespaces=[TEAM])
    secret.unlink(missing_ok=True)


def ending(name: str) -> str:
    """The command that removes all that the demo started."""
    return "make demo-down" if name == INSTANCE else f"make demo-down ARGS='--name {name}'"


def say_goodbye(story: Story, world: World, name: str) -> None:
    """How to go on."""
    kubectl = " ".join(world.kube.kubectl) if world.netns is None else ".venv/bin/kubectl"
    story.line(
        f"""
It stays up. To go on:
  export KUBECONFIG={world.kube.kubeconfig}
  {kubectl} get models,tenants,slo -n {TEAM}
  {kubectl} -n {RELEASE} port-forward svc/headrace-gateway 8080:80 &
  curl http://127.0.0.1:8080/v1/chat/completions -H "Authorization: Bearer $(cat {as_told(key_file(name))})" \\
       -H 'content-type: application/json' \\
       -d '{{"model": "{talk.MODEL}", "messages": [{{"role": "user", "content": "What is goodput?"}}]}}'
  .venv/bin/headrace explain model {talk.MODEL} -n {TEAM}
  {ending(name)}      # removes everything that the demo started"""
    )
