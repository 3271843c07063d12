# SPDX-License-Identifier: Apache-2.0
"""Codecs by name. A codec is checked against the numpy backend before it is handed out."""

from __future__ import annotations

import inspect
import json
import numbers
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.backends import load_kernels
from hopsum.codec.fixed import Fixed
from hopsum.codec.interface import Codec, CodecError, ErrorFeedback, Floats, ReductionContext, address_of
from hopsum.codec.lossless import Lossless
from hopsum.codec.simulate import simulate_phase
from hopsum.codec.thc import Thc, Uhc
from hopsum.codec.two_shot import TwoShot
from hopsum_base.records import record_address
from hopsum_base.shown import name_hint

_CHECKED_ELEMENTS: Final = 3 * 1024 + 5

CODECS: Final[dict[str, Callable[..., Codec]]] = {
    "thc": Thc, "uhc": Uhc, "fixed": Fixed, "lossless": Lossless, "two-shot": TwoShot
}  # fmt: skip
"""Called with workers, the codec's own options, and `kernels`."""
BUILT_IN: Final = tuple(CODECS)
"""Those of this package. They can change their kernels."""

WITH_CODES: Final = ("thc", "uhc")
"""Those that take `code_group`: what the job's switch wants."""
_GIVEN: Final = ("workers", "kernels")
"""Arguments of codecs that are no options."""
_OF_SWITCH: Final = ("code_group",)
"""Options that follow from the job's switch: no message offers them."""
_KINDS: Final[Mapping[type, tuple[tuple[type, ...], str]]] = {
    bool: ((bool, np.bool_), "true or false"),
    int: ((numbers.Integral,), "an integer"),
    float: ((numbers.Real,), "a number"),
    str: ((str,), "text"),
}
"""What is taken for a type, and its name in messages."""

_MOST_BITS: Final = 63
"""Bits of an option that is an integer, at most."""

ENTRY_POINTS: Final = "hopsum.codecs"
"""Group of entry points by which an installed package offers codecs: the codec's name is the entry point's name."""


def register_codec(name: str, make: Callable[..., Codec]) -> None:
    """Add a codec, so that `make_codec` and the setting `codec` take its name. Every rank registers the same codec.

    A second call with the same arguments does nothing.

    Args:
        name: of no other codec.
        make: called with workers, the codec's own options, and `kernels`, which it may ignore. It is not given
            `code_group`: a codec that looks up a table takes that as an option of its own.

    Raises:
        CodecError: another codec has this name.
    """
    if CODECS.get(name, make) is not make:
        raise CodecError(f"codec {name!r} is registered already, as {CODECS[name]!r}: choose another name")
    CODECS[name] = make


def codec_names() -> tuple[str, ...]:
    """Return the names of all codecs that are registered or offered by an installed package, which is not imported."""
    return tuple(dict.fromkeys([*CODECS, *(entry.name for entry in entry_points(group=ENTRY_POINTS))]))


def is_codec(name: str) -> bool:
    """Return whether there is a codec of this name. One that an installed package offers is imported and registered.

    What its import raises is passed on.
    """
    if name not in CODECS:
        # Looked up by name, so that other packages' codecs are not imported for it.
        for entry in entry_points(group=ENTRY_POINTS, name=name):
            register_codec(name, entry.load())
    return name in CODECS


class CodecName(NamedTuple):
    """A codec's name and options, as `NAME` or `NAME:OPTION=VALUE,...` spells them: `thc:bits=2`."""

    name: str
    options: dict[str, Any]

    def __str__(self) -> str:
        """Return the spelling."""
        options = ",".join(f"{key}={json.dumps(value).strip(chr(34))}" for key, value in self.options.items())
        return f"{self.name}:{options}" if options else self.name


def parse_codec(text: str) -> CodecName:
    """Parse `NAME` or `NAME:OPTION=VALUE,...`. This imports and registers an installed package's codec.

    Values are numbers, true, false, or text.

    Raises:
        CodecError: the codec or an option is unknown, or an option has no value, a value of another type, or two
            values. `make_codec` checks that the options fit each other and the job.
    """
    name, colon, rest = text.partition(":")
    if not is_codec(name):
        raise CodecError(f"codec {name!r:.80}: {name_hint(name, codec_names())}")
    options: dict[str, Any] = {}
    for each in rest.split(",") if colon else ():
        key, equals, value = each.partition("=")
        if not key.isidentifier() or not equals or not value:
            raise CodecError(f"codec {text!r:.80}: {each!r:.80} is no OPTION=VALUE, as in thc:bits=2")
        if key in options:
            raise CodecError(f"codec {text!r:.80}: option {key:.80} is there twice")
        try:
            options[key] = json.loads(value)
        except (ValueError, RecursionError):
            options[key] = value
    require_options(name, options)
    return CodecName(name, options)


def _parameters(name: str) -> Mapping[str, inspect.Parameter] | None:
    """Return what a codec takes by name, without what is no option; None where it takes any name, or is unknown."""
    if not is_codec(name):
        return None
    make = CODECS[name]
    try:
        found = inspect.signature(make, eval_str=True).parameters.values()
    except NameError:
        found = inspect.signature(make).parameters.values()  # types that are not there at run time
    except (TypeError, ValueError):
        return None  # made by something that does not say what it takes
    if any(each.kind == each.VAR_KEYWORD for each in found):
        return None
    return {each.name: each for each in found if each.kind != each.POSITIONAL_ONLY and each.name not in _GIVEN}


def require_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise CodecError for an option that a codec does not have, or a value of another type than it has.

    An unknown codec, or one that takes any option, has nothing to check. An installed package's codec is imported.
    """
    known = _parameters(name)
    if known is None:
        return
    offered = [each for each in known if each not in _OF_SWITCH]
    for option, value in options.items():
        if option not in known:
            there = f"its options are {', '.join(offered)}" if offered else "it has no options"
            near = name_hint(option, offered) if offered else ""
            hint = f"; {near}" if near.startswith("did you mean") else ""
            raise CodecError(f"codec {name} has no option {option!r:.80}: {there}{hint}")
        annotation = known[option].annotation
        kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
        if isinstance(value, int) and value.bit_length() > _MOST_BITS:
            # Python refuses to write integers of thousands of digits.
            raise CodecError(f"codec {name}: {option} is an integer of {value.bit_length()} bits: {_MOST_BITS} at most")
        if all(isinstance(kind, type) for kind in kinds) and not any(_is_a(value, kind) for kind in kinds):
            said = [_KINDS[kind][1] if kind in _KINDS else f"a {kind.__name__}" for kind in kinds if kind != NoneType]
            raise CodecError(f"codec {name}: {option}={value!r:.80} is not {' or '.join(said)}")


def _is_a(value: object, kind: type) -> bool:
    if kind is inspect.Parameter.empty:
        return True
    taken = _KINDS[kind][0] if kind in _KINDS else (kind,)
    # True and False are integers in Python.
    return isinstance(value, taken) and (kind is bool or not isinstance(value, bool))


# A program may have made numpy raise for an underflow, which tables have many of.
@np.errstate(all="ignore")
def make_codec(name: str, *, workers: int, backend: str = "auto", threads: int = 1, **options: Any) -> Codec:
    """Make a codec for a job of `workers` workers, and check its bytes against those of the numpy backend.

    With numba a first call compiles the kernels, which may take seconds, and keeps them in numba's cache.

    Args:
        name: "thc", "uhc", "fixed", "lossless", "two-shot", or that of a registered codec, with options if you like:
            "thc:bits=2". Options are those of the classes `Thc`, `Uhc`, `Fixed`, `Lossless`, `TwoShot`, or of what was
            registered.
        workers: of the job, not of one all-reduce.
        backend: "numpy", "numba", or "auto": numba where it is installed, unless HOPSUM_COMPILED=0. Ranks may differ:
            their bytes do not.
        threads: that a call may use, the calling one among them. Bytes do not depend on it.

    Raises:
        CodecError: unknown name or backend, options that do not fit, or a failed check.
    """
    name, spelled = parse_codec(name)
    if twice := spelled.keys() & options:
        raise CodecError(f"codec {name}: option {', '.join(sorted(twice))} is there twice")
    options = spelled | options
    require_options(name, options)
    # Made and checked before it is handed out: a worker that joined with wrong kernels would split the replicas.
    codec = CODECS[name](workers, kernels=load_kernels(backend, threads), **options)
    if codec.backend != "numpy":
        self_check(codec, CODECS[name](workers, kernels=load_kernels("numpy"), **options))
    return codec


def self_check(codec: Codec, reference: Codec) -> None:
    """Compare a codec with one of another backend on a small vector, phase by phase.

    A kernel from a stale cache, or one that the machine's compiler got wrong, would split the replicas of a job.

    Raises:
        CodecError: any byte differs. Do not use this backend.
    """
    x = np.random.default_rng(20230216).standard_t(3, _CHECKED_ELEMENTS).astype(np.float32)
    # One block is much smaller than the others, and a third of all elements are zero: cases that kernels treat apart.
    x[:1024] *= np.float32(1e-8)
    x[::3] = 0
    # Once by calls for the whole vector, and once as the worker's compiled loop encodes and decodes it.
    traced = zip([*_trace(codec, x), *_trace(codec, x, compiled=True)], [*_trace(reference, x)] * 2, strict=True)
    for (what, found), (_, expected) in traced:
        if found.shape != expected.shape or found.tobytes() != expected.tobytes():
            raise CodecError(
                f"codec {codec.name}: {what} of backend {codec.backend} differs from that of {reference.backend}; "
                "remove numba's cache (__pycache__ below hopsum/codec) or use backend numpy"
            )


def _trace(codec: Codec, x: Floats, *, compiled: bool = False) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield what the last rank of a job makes of x, when rank 0 has twice as much of it.

    There are no ranks between, unless ranks add.
    """
    kept = ErrorFeedback(x.size)
    # The last rank has the highest bit of the bitmap, rank 0 the lowest: both ends are checked.
    last = codec.start(x, ReductionContext(11, 3, codec.workers - 1), kept)
    adds = last.phase is not None and last.phase.add is not None
    others = range(codec.workers - 1) if adds or codec.workers == 1 else range(1)
    ranks = [*(codec.start(x if rank else x + x, ReductionContext(11, 3, rank)) for rank in others), last]
    bits = np.array([*others, codec.workers - 1], np.uint64)
    number = 0
    while (phase := last.phase) is not None:
        number += 1
        stream = last.stream
        if stream is not None and stream.run is not None and stream.encoder is not None:
            stream.encoded = len(stream.payloads)
            stream.encoder(record_address(stream.run), 0, stream.encoded)
        yield f"phase {number} ({phase.op.name})", phase.payloads
        results, _ = simulate_phase(codec, [rank.phase for rank in ranks if rank.phase is not None])
        contributors = np.full(len(results), np.bitwise_or.reduce(np.uint64(1) << bits), np.uint64)
        if stream is not None and stream.run is not None and stream.decoder is not None:
            stream.taken = len(results)
            places = (address_of(results), address_of(contributors))
            stream.decoder(record_address(stream.run), 0, stream.taken, *places)
        if compiled:
            last.encode_in_parts(_CHECKED_ELEMENTS, compiled=True)
        for rank in ranks:
            rank.on_results(results, contributors)
    assert last.mean is not None
    yield "the mean", last.mean
    yield "the residual", kept.residual
