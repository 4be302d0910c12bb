"""The demo from its beginning to its end."""

from __future__ import annotations

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
SECRET = ROOT / ".headrace" / "demo-key"
SAMPLES = ("slo.yaml", "tenants.yaml", "profile.yaml", "model.yaml")
PLAN = """Headrace, from nothing to a streamed answer on a real Kubernetes:
  1 what this machine needs   (first time 10 to 15 min: Kubernetes is compiled, torch is fetched; later seconds)
  2 a cluster                 (yours if KUBECONFIG is set, else a single-node one of its own; about 20 s)
  3 the images and the charts (about 30 s)
  4 a Model, its service levels and two Tenants
  5 a chat, and the ways of being told no
  6 a burst that one replica cannot hold (three to four min: up to two replicas and back)
It leaves all that running; `make demo-down` removes everything that it started."""


def up(name: str = INSTANCE, *, with_burst: bool = True, force: bool = False) -> None:
    """Run the demo, on the embedded instance `name` unless KUBECONFIG names a cluster.

    Raises ClusterError where another checkout runs that instance, unless `force`.
    """
    story = Story(6 if with_burst else 5)
    check()
    if not force:
        claim(name)
    story.line(PLAN)
    with story.step("What this machine needs"):
        prepare(parts())
    with story.step("A Kubernetes"):
        if not force:
            claim(name)  # minutes have passed
        world = open_world(name)
        story.result(world.kube.run("get", "nodes"))
    try:
        _show(story, world, with_burst)
        say_goodbye(story, world, name)
    except (DemoFailed, WaitFailed):
        world.kube.require()  # a cluster that was taken down explains it better
        raise


def _show(story: Story, world: World, with_burst: bool) -> None:
    with story.step("Operator and gateway, by helm"):
        install(world.kube, RELEASE, [TEAM], world.images, {})
        story.result(world.kube.run("get", "pods", "-n", RELEASE))
    with story.step("A Model, its service levels and two Tenants"):
        keys = apply_samples(story, world.kube)
    with world.gateway(RELEASE) as url:
        search, guest = Endpoint(url, keys["search"].secret), Endpoint(url, keys["guest"].secret)
        with story.step("A chat"):
            talk.streamed_answer(story, search)
            talk.refusals(story, search, guest)
        if with_burst:
            with story.step("A burst that one replica cannot hold"):
                load = world.endpoint_for_load(RELEASE, url, keys["search"].secret)
                burst.offer(story, world, burst.Place(RELEASE, TEAM), load)
    show_columns(story, world.kube)


def apply_samples(story: Story, kube: Kube) -> dict[str, Key]:
    """Apply the samples with fresh keys and wait until the Model is Ready."""
    for sample in SAMPLES:
        story.command(f"kubectl apply -n {TEAM} -f charts/samples/{sample}")
        story.result(kube.run("apply", "-n", TEAM, "-f", str(CHARTS / "samples" / sample)))
    keys = {tenant: new_key("demo") for tenant in ("search", "guest")}
    keep(keys["search"])
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


def keep(key: Key) -> None:
    """Write a key where the user finds it, readable by its owner alone."""
    SECRET.parent.mkdir(exist_ok=True)
    SECRET.touch(mode=0o600)
    SECRET.write_text(key.secret + "\n")


def down(name: str = INSTANCE, *, force: bool = False) -> None:
    """Remove what `up` has started, here and on the cluster. Raises ClusterError as `up` does."""
    if not force:
        claim(name)
    close_world(name, releases=[RELEASE], namespaces=[TEAM])
    SECRET.unlink(missing_ok=True)


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
  curl http://127.0.0.1:8080/v1/chat/completions -H "Authorization: Bearer $(cat {SECRET.relative_to(ROOT)})" \\
       -H 'content-type: application/json' \\
       -d '{{"model": "{talk.MODEL}", "messages": [{{"role": "user", "content": "What is goodput?"}}]}}'
  .venv/bin/headrace explain model {talk.MODEL} -n {TEAM}
  {ending(name)}      # removes everything that the demo started"""
    )
