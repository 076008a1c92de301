"""Where shards run. `LocalPlaces`: in this process. `RayPlaces`: as actors of Ray, which only this module imports. A
shard is a detached actor, named after its folder, on a node that offers its place as a resource. Ray starts it again
when its process dies, and repeats requests, without harm."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from edge.apps.cluster.calling import Send, received
from edge.apps.cluster.catalogue import Replica
from edge.apps.cluster.shard import Reader, Shard
from edge.config import Config
from edge.errors import CapabilityError, EdgeError, InputError, StorageError, Unreachable
from edge.interpreter import python
from edge.resident import Closing

Result = TypeVar("Result")

LOCAL = "local"

OBJECT_STORE_NBYTES = 80 * 10**6
"""Shared memory of a node. Ray refuses less than 75 MiB, and takes 30 % of the machine's memory if not told."""

_NAMESPACE = "edge"
_AT_ONCE = 16

_RETRIES = 3

_WITHOUT_HEAD_S = 7 * 86_400  # Seconds that a process goes on without Ray's head; Ray ends it after 60 otherwise.
_HEAD_S = 5.0

_HEADLESS = (
    "Ray's head ({}) does not answer. What was indexed is in the shards: run `ray stop` on all machines, start the "
    "nodes again, and repeat the command"
)

_LOOPBACK = "127.0.0.1"
_SHARE = 1e-3  # So that a place has room for as many shards as anyone puts there.


class LocalPlaces(Closing):
    def __init__(self, *, config: Config) -> None:
        self._config = config
        self._shards: dict[str, Shard] = {}
        self._threads = ThreadPoolExecutor(16, "edge-shards")
        self._opening = threading.Lock()
        self._reading = ThreadPoolExecutor(1, "edge-reader")
        self._reader: Reader | None = None

    def send(self, replica: Replica, verb: str, head: bytes, raw: bytes) -> Future[tuple[bytes, bytes]]:
        return self._threads.submit(self._answer, replica, verb, head, raw)

    def _answer(self, replica: Replica, verb: str, head: bytes, raw: bytes) -> tuple[bytes, bytes]:
        with self._opening:
            if replica.folder not in self._shards:
                self._shards[replica.folder] = Shard(replica.folder, memory=replica.memory, config=self._config)
            shard = self._shards[replica.folder]
        return shard.answer(verb, head, raw)

    def readers(self, count: int) -> list[Send]:
        """One: more would wait for the same processors."""
        if self._reader is None:
            self._reader = Reader(memory=self._config.memory, config=self._config)
        reader = self._reader
        return [lambda verb, head, raw: self._reading.submit(reader.answer, verb, head, raw)]

    def trouble(self) -> str:
        return ""

    def close(self) -> None:
        self._threads.shutdown()
        self._reading.shutdown()
        if self._reader is not None:
            self._reader.close()
        while self._shards:
            self._shards.popitem()[1].close()


class RayPlaces(Closing):
    def __init__(self, address: str, *, config: Config) -> None:
        """Connects to the cluster at `address` (`HOST:PORT`, or `auto`), or starts one in this process (`local`)."""
        self._ray = ray = _ray()
        self._config, self._address = config, address
        self._actors: dict[str, Any] = {}
        self._readers: list[Any] = []
        self._starting = threading.Lock()
        own = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_NBYTES, "_node_ip_address": _LOOPBACK}
        try:
            self._head = _head_of(address)
            if why := self.trouble():  # Ray would end this process after 40 s
                raise Unreachable(why)
            # Ray lets actors search the working directory for modules, except in jobs of its client.
            job = ray.job_config.JobConfig(_client_job=True)
            ray.init(
                address=address, namespace=_NAMESPACE, job_config=job, log_to_driver=False, logging_level="error",
                **(own if address == LOCAL else {}),
            )  # fmt: skip
        except EdgeError:
            raise
        except Exception as error:  # Ray raises a dozen kinds
            why = str(error).strip().split("\n")[0]
            raise StorageError(f"there is no cluster of Ray at {address} that takes us in: {why}") from error

    def send(self, replica: Replica, verb: str, head: bytes, raw: bytes) -> Future[tuple[bytes, bytes]]:
        """Starts the shard if it does not run."""
        if (actor := self._actors.get(_name(replica))) is not None:
            answer: Future[tuple[bytes, bytes]] = actor.answer.remote(verb, head, raw).future()
            return answer
        return _beside(lambda: self._actor(replica).answer.remote(verb, head, raw).future().result())

    def readers(self, count: int) -> list[Send]:
        """Each takes a processor, on any node. `Unreachable` without a head."""

        def started() -> list[Any]:
            wanted = count or max(1, int(self._ray.cluster_resources().get("CPU", 1)))
            made = self._ray.remote(Reader).options(num_cpus=1, max_restarts=-1, max_task_retries=_RETRIES)
            return [made.remote(memory=self._config.memory, config=self._config) for _ in range(wanted)]

        self._readers += (actors := received(self, _beside(started), Unreachable))

        def sending(actor: Any) -> Send:
            return lambda verb, head, raw: actor.answer.remote(verb, head, raw).future()

        return [sending(actor) for actor in actors]

    def trouble(self) -> str:
        return "" if self._head is None or _answers(self._head) else _HEADLESS.format(self._address)

    def close(self) -> None:
        """Shards go on, unless the cluster is this process's own."""
        self._ray.shutdown()

    def _actor(self, replica: Replica) -> Any:
        name = _name(replica)
        with self._starting:
            if name not in self._actors:
                self._actors[name] = (
                    self._ray.remote(Shard)
                    .options(
                        name=name, lifetime="detached", get_if_exists=True, num_cpus=0,
                        resources={replica.place: _SHARE} if replica.place else None, max_restarts=-1,
                        max_task_retries=_RETRIES, max_concurrency=_AT_ONCE,
                    )
                    .remote(replica.folder, memory=replica.memory, config=self._config)
                )  # fmt: skip
            return self._actors[name]


def _head_of(address: str) -> str | None:
    """None if it is this process's own."""
    try:  # private to Ray, so that the extra `cluster` names the latest version that has it
        from ray._private.services import canonicalize_bootstrap_address
    except ImportError as error:
        raise CapabilityError(
            "the version of Ray is not one that edge knows: pip install 'edge-rag[cluster]', on every machine"
        ) from error
    found: str | None = canonicalize_bootstrap_address(address)
    return found


def _beside(work: Callable[[], Result]) -> Future[Result]:
    """In a thread of its own, because Ray waits for its head without end."""
    done: Future[Result] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as error:
            done.set_exception(error)

    threading.Thread(target=run, name="edge-ray", daemon=True).start()
    return done


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _HEAD_S).close()
    except (OSError, ValueError, OverflowError):  # also what is no name or number
        return False
    return True


def _name(replica: Replica) -> str:
    return f"{replica.place}:{replica.folder}"


def start_node(head: str | None, *, place: str, listen: str, port: int, nbytes: int) -> None:
    _ray()
    try:
        socket.create_server((listen, 0)).close()
    except (OSError, ValueError) as error:
        raise InputError(f"{listen!r} is no address of this machine") from error
    if head is not None and not _answers(head):
        raise StorageError(f"nothing answers at {head!r}; --join takes HOST:PORT of the cluster's head")
    role = ["--head", f"--port={port}", "--include-dashboard=false"] if head is None else [f"--address={head}"]
    command = python(
        "from ray.scripts.scripts import main; main()", "start", *role, f"--node-ip-address={listen}",
        "--disable-usage-stats", f"--object-store-memory={nbytes}", f"--resources={json.dumps({place: 1})}",
    )  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().split("\n")[-1]
        raise StorageError(f"Ray does not start: {last}")


def token_file() -> Path:
    """Every machine must have it."""
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH", Path.home() / ".ray" / "auth_token"))


def _ray() -> Any:
    """Told to ask for a token and to report nothing, before it reads its settings."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(_WITHOUT_HEAD_S))
    if os.environ.setdefault("RAY_AUTH_MODE", "token") == "token" and "RAY_AUTH_TOKEN" not in os.environ:
        file = token_file()
        if not file.exists():
            with contextlib.suppress(FileExistsError):
                file.parent.mkdir(parents=True, exist_ok=True)
                with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
                    out.write(secrets.token_hex(32))
    try:
        import ray
    except ImportError as error:
        raise CapabilityError(
            "a collection on several machines needs Ray: pip install 'edge-rag[cluster]', on every machine"
        ) from error
    return ray
