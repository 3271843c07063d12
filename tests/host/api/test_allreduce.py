# SPDX-License-Identifier: Apache-2.0
"""hopsum.allreduce: arrays in, arrays out, futures, error feedback; sources of settings and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

import hopsum
from hopsum import api
from hopsum.agent import Communicator
from hopsum.api import ReduceOp, _read
from hopsum.codec import NonFiniteError
from hopsum.codec.dither import _sums, job_dither
from hopsum.config import Config, ConfigError, resolve
from hopsum.connection.url import UrlError
from hopsum.errors import GenerationEndedError, HopsumError

from .ranks import run_ranks, vectors


@pytest.fixture
def job() -> Iterator[Communicator]:
    """One worker, exact sums."""
    with hopsum.connect("memory://one?workers=1", codec="fixed", backend="numpy", rank=0) as job:
        yield job


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4", ">f8"])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 3, 4), (0,), (3, 0)])
def test_arrays_keep_shape_and_type(job: Communicator, dtype: str, shape: tuple[int, ...]) -> None:
    array = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape) - 3, np.dtype(dtype))
    before = array.copy()
    mean = hopsum.allreduce(array, job)
    assert type(mean) is np.ndarray
    assert (mean.shape, mean.dtype) == (array.shape, array.dtype)
    assert mean.tobytes() == before.tobytes() == array.tobytes()
    assert not np.shares_memory(mean, array)


def test_arrays_of_any_layout(job: Communicator) -> None:
    whole = np.arange(48, dtype=np.float32).reshape(6, 8)
    for array in (whole.T, whole[::2, 1:], whole[:, ::-1], np.asfortranarray(whole)):
        assert hopsum.allreduce(array, job).tolist() == array.tolist()
    readonly = whole.copy()
    readonly.flags.writeable = False
    assert hopsum.allreduce(readonly, job).tolist() == whole.tolist()


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("spelled", ["thc", "thc:bits=2", "thc:rounding=stochastic", "uhc", "fixed", "lossless"])
def test_a_program_that_lets_numpy_raise_sums_all_the_same(spelled: str, backend: str) -> None:
    """What rounds to 0 or to infinity is no error of the program. What is beyond float32 is that of all ranks."""
    small = np.concatenate([np.full(1500, 1e-300), np.full(1500, 1e-42), [1e-30, 1.0]])
    mixed = (small, small.astype(np.float32), np.full(1500, 6e-8, np.float16), np.full(9, 60000, np.float16))
    job_dither.cache_clear()
    _sums.cache_clear()
    old = np.seterr(all="raise")
    try:
        with hopsum.connect("memory://strict?workers=1", codec=spelled, backend=backend, rank=0) as job:
            for x in mixed:
                for _ in range(2):
                    assert np.isfinite(hopsum.allreduce(x, job, name=f"{x.dtype} {x.size}")).all()
            with pytest.raises(NonFiniteError):
                hopsum.allreduce(np.array([1.0, 1e300]), job)
        twice = np.full(2000, 60000, np.float16)
        call = _read(twice, None)
        assert np.isinf(call.restore(twice.astype(np.float32), 2)).all()
        assert np.isinf(_read(np.ones(1, np.float32), None).restore(np.full(1, 3e38, np.float32), 2)).all()
    finally:
        np.seterr(**old)


def test_out_takes_the_result_also_in_place(job: Communicator) -> None:
    array, out = np.arange(6.0).reshape(2, 3), np.zeros((3, 2)).T
    assert hopsum.allreduce(array, job, out=out) is out
    assert out.tolist() == array.tolist()
    future = hopsum.allreduce(array, job, out=array, op="sum", async_op=True)
    assert future.result(60) is array
    for wrong in (np.zeros(6), np.zeros((2, 3), np.float32), [0.0] * 6):
        with pytest.raises(TypeError, match=r"out is .*, but the array float64\[2, 3\]"):
            hopsum.allreduce(array, job, out=wrong)


@pytest.mark.parametrize("wrong", [np.arange(3), np.zeros(3, np.complex64), np.zeros(3, bool), [1.0, 2.0], 1.5, None])
def test_what_is_no_floating_point_array(job: Communicator, wrong: Any) -> None:
    with pytest.raises(TypeError, match="hopsum sums"):
        hopsum.allreduce(wrong, job)
    assert job.statistics.allreduces == 0


def test_float64_beyond_float32_is_infinite(job: Communicator) -> None:
    with pytest.raises(NonFiniteError):
        hopsum.allreduce(np.array([1.0, 1e300]), job)
    assert np.isnan(hopsum.allreduce(np.array([1.0, 1e300]), job, on_nonfinite="skip")).all()


def test_settings_say_what_becomes_of_nan() -> None:
    with hopsum.connect("memory://skip?workers=1", codec="fixed", backend="numpy", on_nonfinite="skip", rank=0) as job:
        assert np.isnan(hopsum.allreduce(np.array([np.nan, 1]), job)).all()
        with pytest.raises(NonFiniteError, match=r"bias: 1 of 2"):
            hopsum.allreduce(np.array([np.nan, 1]), job, name="bias", on_nonfinite="raise")


def test_mean_and_sum_over_ranks() -> None:
    def work(job: Communicator) -> tuple[list[float], list[float]]:
        x = np.float32([job.rank, 3])
        return hopsum.allreduce(x, job).tolist(), hopsum.allreduce(x, job, op="sum").tolist()

    assert run_ranks("memory://mean?workers=3", work, 3, codec="fixed") == [([1, 3], [3, 9])] * 3


@pytest.mark.parametrize(
    ("codec", "error_feedback", "carries"),
    [
        ("uhc:bits=2", True, True),
        ("uhc:bits=2", False, False),
        ("thc:result_bits=8", True, True),
        ("thc:bits=2", True, False),
        ("thc:bits=2,error_feedback=true", True, True),
    ],
)
def test_a_name_carries_the_error_to_the_next(codec: str, error_feedback: bool, carries: bool) -> None:
    """One vector, many times: with error feedback the sum of means nears the sum of vectors. thc:bits=2 has none."""
    x, steps = vectors(1, 1024)[0], 24
    url = "memory://names?workers=1"
    with hopsum.connect(url, codec=codec, backend="numpy", rank=0, error_feedback=error_feedback) as job:
        named = sum(hopsum.allreduce(x, job, name="a").astype(np.float64) for _ in range(steps)) / steps
        nameless = sum(hopsum.allreduce(x, job).astype(np.float64) for _ in range(steps)) / steps
    errors = [float(((found - x) ** 2).sum() / (x**2).sum()) for found in (named, nameless)]
    assert (errors[0] < errors[1] / 3) is carries


def test_a_name_is_on_its_way_once_and_keeps_its_length() -> None:
    def meet(job: Communicator) -> None:
        x = np.ones(4, np.float32)
        if job.rank == 1:
            start.result(60)
        first = hopsum.allreduce(x, job, async_op=True, name="a")
        if job.rank == 0:
            with pytest.raises(ValueError, match="an all-reduce of 'a' is still on its way"):
                hopsum.allreduce(x, job, name="a")
            start.set_result(None)
        first.result(60)
        hopsum.allreduce(x.reshape(2, 2), job, name="a")
        with pytest.raises(HopsumError, match="vector of 3 elements with an error feedback of 4"):
            hopsum.allreduce(x[:3], job, name="a")

    start: Future[None] = Future()
    run_ranks("memory://once?workers=2", meet, 2, codec="fixed")


def test_an_error_reaches_the_future(job: Communicator) -> None:
    future = hopsum.allreduce(np.array([np.nan]), job, async_op=True)
    assert isinstance(future.exception(20), NonFiniteError)
    job.close()
    with pytest.raises(HopsumError, match="is closed"):
        hopsum.allreduce(np.ones(2), job, async_op=True)


class TestNoJob:
    @pytest.fixture(autouse=True)
    def _environment(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setenv("HOPSUM_BACKEND", "numpy")
        monkeypatch.setenv("HOPSUM_CODEC", "fixed")
        yield
        hopsum.disconnect()

    def test_settings_say_which(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(UrlError, match="no URL"):
            hopsum.allreduce(np.ones(2))
        monkeypatch.setenv("HOPSUM_URL", "memory://default?workers=1")
        assert hopsum.allreduce(np.ones(2)).tolist() == [1, 1]
        assert hopsum.allreduce(np.ones(2)).tolist() == [1, 1]

    def test_a_url_stays_connected_until_disconnect(self) -> None:
        url = "memory://implicit?workers=1"
        for _ in range(2):
            hopsum.allreduce(np.ones(2), url, name="a")
        with pytest.raises(HopsumError, match="rank 0 of memory://implicit is taken"):
            hopsum.connect(url)
        hopsum.disconnect("memory://other?workers=1")
        with pytest.raises(HopsumError, match="is taken"):
            hopsum.connect(url)
        hopsum.disconnect(url)
        hopsum.connect(url).close()

    def test_after_a_failure_disconnect_starts_afresh(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOPSUM_DEADLINE_S", "0.05")
        monkeypatch.setenv("HOPSUM_RANK", "0")
        url = "memory://afresh?workers=2"
        with pytest.raises(HopsumError, match=r"ranks \[1\] of 2 brought nothing"):
            hopsum.allreduce(np.ones(2), url)
        with pytest.raises(GenerationEndedError):
            hopsum.allreduce(np.ones(2), url)
        hopsum.disconnect()
        with pytest.raises(HopsumError, match=r"ranks \[1\] of 2 brought nothing"):
            hopsum.allreduce(np.ones(2), url)

    def test_disconnect_closes_all_where_one_raises(self, monkeypatch: pytest.MonkeyPatch) -> None:
        urls = [f"memory://closed-{number}?workers=1" for number in range(3)]
        for url in urls:
            hopsum.allreduce(np.ones(2), url)

        def fail() -> None:
            raise OSError("no such link")

        with monkeypatch.context() as patch:
            patch.setattr(api._opened[urls[1]], "close", fail)
            with pytest.raises(OSError, match="no such link"):
                hopsum.disconnect()
        for url in urls[::2]:
            hopsum.connect(url).close()

    def test_urls_are_checked(self) -> None:
        with pytest.raises(ConfigError, match="sums nowhere"):
            hopsum.allreduce(np.ones(2), "memry://x?workers=1")


@pytest.mark.parametrize("op", ["mean", "sum"])
def test_half_precision_stays_within_its_range(op: ReduceOp) -> None:
    """A mean of float16 is finite although the codec's error lies beyond; a sum may be too large for it."""
    x = np.full(1024, 60000, np.float16)
    x[::7] *= -1

    def work(job: Communicator) -> np.ndarray[Any, Any]:
        return hopsum.allreduce(x, job, op=op)

    found = run_ranks("memory://half?workers=2", work, 2, codec="thc")
    assert bool(np.isfinite(found[0]).all()) == (op == "mean")
    assert found[0].tobytes() == found[1].tobytes()


def test_vectors_that_are_too_large_on_all_ranks_are_said_to_be() -> None:
    def work(job: Communicator) -> str:
        with pytest.raises(NonFiniteError) as refused:
            hopsum.allreduce(np.full(300, 3e38, np.float32), job)
        return str(refused.value)

    found = run_ranks("memory://large?workers=2", work, 2, codec="thc")
    for rank, text in enumerate(found):
        assert text.startswith(f"rank {rank}: the vector is finite, but too large for the codec: its largest")


def test_another_operation_is_refused() -> None:
    with (
        hopsum.connect("memory://alone?workers=1", rank=0, codec="fixed") as comm,
        pytest.raises(ValueError, match='op is "mean" or "sum", not \'max\''),
    ):
        hopsum.allreduce(np.ones(3, np.float32), comm, op="max")  # type: ignore[call-overload]


def test_defaults() -> None:
    assert resolve(environment={}) == Config()


def test_arguments_come_before_the_environment_before_defaults() -> None:
    environment = {
        "HOPSUM_RANK": "4",
        "HOPSUM_CODEC": "fixed",
        "HOPSUM_SEED": "11",
        "HOPSUM_RETRANSMIT_S": "0.25",
        "RANK": "5",
    }
    found = resolve({"rank": 1, "seed": None}, environment=environment)
    assert (found.rank, found.codec) == (1, "fixed")
    assert (found.seed, found.retransmit_s) == (11, 0.25)
    assert found.backend == "auto"


def test_kubernetes_variables_for_services_are_no_settings() -> None:
    """Each pod has them of every Service of its namespace, as of hopsum-controller."""
    place = "tcp://10.96.0.7:9600"
    links = {f"HOPSUM_CONTROLLER_{name}": text for name, text in {
        "SERVICE_HOST": "10.96.0.7", "SERVICE_PORT": "9600", "SERVICE_PORT_GRPC": "9600", "PORT": place,
        "PORT_9600_TCP": place, "PORT_9600_TCP_PROTO": "tcp", "PORT_9600_TCP_PORT": "9600",
        "PORT_9600_TCP_ADDR": "10.96.0.7"}.items()}  # fmt: skip
    assert resolve(environment={**links, "HOPSUM_UDP_PORT": "7"}).udp_port == 7
    with pytest.raises(ConfigError, match="upd_port"):
        resolve(environment={"HOPSUM_UPD_PORT": "7"})


@pytest.mark.parametrize("name", ["COMPILED", "COMPARE", "HOST", "NETWORK", "TLS", "CONTROLLER", "ADMIN_TOKEN_FILE"])
def test_variables_that_others_read_are_no_settings(name: str) -> None:
    """They are next to a worker's settings, so a worker connects all the same."""
    assert resolve(environment={f"HOPSUM_{name}": "0"}) == resolve(environment={})


def test_the_process_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSUM_SEED", "9")
    assert resolve().seed == 9


@pytest.mark.parametrize(
    ("spelled", "options"),
    [
        ("thc:bits=2", {"bits": 2}),
        ("uhc:bits=8,lane_bits=16", {"bits": 8, "lane_bits": 16}),
        ("thc:error_feedback=false", {"error_feedback": False}),
    ],
)
def test_a_codec_is_spelled_with_its_options(spelled: str, options: dict[str, Any]) -> None:
    for found in (resolve({"codec": spelled}, environment={}), resolve(environment={"HOPSUM_CODEC": spelled})):
        assert (found.codec, found.codec_options) == (spelled.partition(":")[0], options)


def test_options_in_two_places_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"codec 'thc:bits=2' names its options, and codec_options says"):
        resolve({"codec": "thc:bits=2", "codec_options": {"bits": 4}}, environment={})


@pytest.mark.parametrize(
    ("spelled", "message"),
    [
        ("thc:", "'' is no OPTION=VALUE, as in thc:bits=2"),
        ("thc:bits=", "'bits=' is no OPTION=VALUE"),
        ("thc:2=bits", "'2=bits' is no OPTION=VALUE"),
        ("thc:bits=2,bits=2", "option bits is there twice"),
        ("thcs:bits=2", r"'thcs': did you mean thc\?"),
    ],
)
def test_a_codec_that_is_spelled_wrong_is_refused(spelled: str, message: str) -> None:
    for origin, given, environment in (
        ("argument codec", {"codec": spelled}, {}),
        ("environment variable HOPSUM_CODEC", {}, {"HOPSUM_CODEC": spelled}),
    ):
        with pytest.raises(ConfigError, match=f"{origin}: codec .*{message}"):
            resolve(given, environment=environment)


@pytest.mark.parametrize(
    ("environment", "rank"),
    [({"RANK": "3"}, 3), ({"RANK": "3", "HOPSUM_RANK": "2"}, 2), ({"RANK": "x", "HOPSUM_RANK": "2"}, 2)],
)
def test_torchruns_rank_counts_least(environment: dict[str, str], rank: int) -> None:
    assert resolve(environment=environment).rank == rank


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("url", "memory://a?workers=1", "memory://a?workers=1"),
        ("threads", "2", 2),
        ("error_feedback", "no", False),
        ("error_feedback", "TRUE", True),
        ("codec_options", "{bits = 8, lane_bits = 16}", {"bits": 8, "lane_bits": 16}),
    ],
)
def test_environment_variables_are_text(name: str, text: str, value: Any) -> None:
    assert getattr(resolve(environment={f"HOPSUM_{name.upper()}": text}), name) == value


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"HOPSUM_RANKS": "1"}, "environment variable HOPSUM_RANKS: there is no setting 'ranks'; did you mean rank?"),
        ({"HOPSUM_CONFIG": "job.toml"}, "environment variable HOPSUM_CONFIG: there is no setting 'config'; there are"),
        ({"HOPSUM_RANK": "one"}, "environment variable HOPSUM_RANK is 'one': rank is an integer of 0 to 65535"),
        ({"HOPSUM_RANK": "-1"}, "environment variable HOPSUM_RANK is -1: rank is an integer"),
        ({"RANK": "one"}, "environment variable RANK is 'one': rank is an integer"),
        ({"HOPSUM_THREADS": "0"}, "environment variable HOPSUM_THREADS is 0: threads is an integer of 1 to 256"),
        ({"HOPSUM_DEADLINE_S": "nan"}, "environment variable HOPSUM_DEADLINE_S is nan: deadline_s is a number of"),
        ({"HOPSUM_ERROR_FEEDBACK": "maybe"}, "is 'maybe': error_feedback is true or false"),
        ({"HOPSUM_CODEC_OPTIONS": "bits=8"}, "is 'bits=8': codec_options is a table"),
        ({"HOPSUM_CODEC": "tch"}, "environment variable HOPSUM_CODEC: codec 'tch': did you mean thc?"),
    ],
)
def test_what_does_not_fit_in_the_environment(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve(environment=environment)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dedline_s": 3}, "argument dedline_s: there is no setting 'dedline_s'; did you mean deadline_s?"),
        ({"dedline_s": None}, "argument dedline_s: there is no setting"),
        ({"zzz": 3}, "there is no setting 'zzz'; there are url, rank, codec,"),
        ({"rank": "3"}, "argument rank is '3': rank is an integer"),
        ({"rank": True}, "argument rank is True: rank is an integer"),
        ({"error_feedback": 1}, "argument error_feedback is 1: error_feedback is true or false"),
        ({"retransmit_s": 0}, "argument retransmit_s is 0: retransmit_s is a number of 0.001 to 3600"),
        ({"on_nonfinite": "zero"}, 'argument on_nonfinite is \'zero\': on_nonfinite is "raise" or "skip"'),
    ],
)
def test_what_does_not_fit_in_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve(arguments, environment={})
    assert message in str(refused.value)
