"""Estimate the bytes that a model takes in the memory of a learner's devices and host, and of a peer.

The module does arithmetic only. Parameters, moments and caches are counted exactly. The activations of a forward and
backward pass are a count of numbers per token and layer that was fitted to what XLA reports for compiled steps;
tests/policy/sizing/test_memory.py checks that it stays within ACTIVATION_MARGIN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rollcast.policy.config import PACKED_BLOCK, ModelConfig, OptimiserName, StateDtype
from rollcast.policy.lora import adapter_shapes, is_adapter, version_shapes
from rollcast.policy.shapes import (
    Shapes,
    head_copies,
    is_hidden_kernel,
    is_packable_kernel,
    parameter_count,
    parameter_shapes,
)

Bytes = dict[str, int]  # bytes by component

ACTIVATION_MARGIN = 0.25
"""Largest relative error of the activation estimate against XLA's own report on a CPU."""
COMPILED_MARGIN = 0.1
"""Largest relative error of a learner's peak against accelerators' compilers (`python -m bench fits`)."""

_MOMENT_BLOCK = 256  # most elements that share a scale (learner.optimisers.moments)
_FP8_BLOCK = 128  # rows and columns that share a scale (rollcast.policy.products.quantise)
_LOGIT_TILE = 1 << 24  # most logits that exist at a time (rollcast.policy.logits)
_TILE_COPIES = 3  # number of arrays of a tile's size: logits, shares and their gradient
_SAMPLED_COPIES = 3  # number of arrays of the size of a peer's logits: raw, with noise, log-probabilities
_PAGE_TOKENS = 16  # tokens of one page of the cache
_READ_TOKENS = 512  # prompt tokens that a peer reads at once (rollcast.policy.sampling.sampler)

# Bytes per token that the backward pass of one layer needs at its peak, by what they are proportional to: width, query
# heads x size, key-value heads x size, inner width, query heads x row length (attention that is not fused). Those of
# bfloat16 fit what XLA's compilers say of 4B to 32B on H100s (`python -m bench fits`): cuDNN's kernel reads keys and
# values that are repeated for each query head, and keeps float32 sums for up to 64 sequences of a row.
_ONE_LAYER = {"float32": (60, 12, 16, 20, 4), "bfloat16": (11, 18, 4, 8, 6)}
# Copies, in the carrier's dtype, of an expert's input and of its inner values that the backward pass of a layer needs,
# for each token and each of its experts; fitted like the numbers above to Qwen3-30B-A3B.
_EXPERT_COPIES = (3, 2)
# Without rematerialisation a layer keeps the results of its products: numbers in the carrier's dtype per token, in
# proportion to the same sizes. Scores of whole rows, the last, are 4 bytes each.
_PRODUCTS = (3, 2, 2, 2, 4)
_FORWARD_SHARE = 1 / 3  # of one layer's bytes that a forward pass alone needs
# Copies of the largest tensor in float32 that an optimiser step makes besides gradients, moments and results.
_STEP_COPIES: Mapping[StateDtype, float] = {"float32": 1.05, "bfloat16": 1.6, "int8": 3.4}
_OFFLOADED_STEP_COPIES = 8
# Copies of a layer's largest kernel in float32 that Muon's iteration makes on every device, which all gather it whole;
# by XLA's compiler for 1 to 8 H100s.
_MUON_COPIES = 3.5


@dataclass(frozen=True, slots=True)
class LearnerShape:
    """The settings besides the model that determine a learner's memory."""

    row_tokens: int  # longest row
    micro_batch_tokens: int
    state_dtype: StateDtype = "float32"
    offload: bool = False
    optimiser: OptimiserName = "adamw"
    remat: bool = False
    reference: bool = False  # a second copy of the parameters, for a KL term
    critic: bool = False
    recomputes: bool = True  # behaviour log-probabilities of older versions, at least of a few rollouts
    data: int = 1
    fsdp: int = 1
    tensor: int = 1
    fused_attention: bool = False  # the scores of whole rows never exist
    processes: int = 1  # hosts that the devices belong to, in equal numbers
    teacher: ModelConfig | None = None  # held on the devices for distillation
    warm_start: bool = False  # which trains all weights in float32, also where adapters are trained afterwards
    publishes: bool = True  # versions, which its own sampler can evaluate; supervised training does neither

    @property
    def devices(self) -> int:
        """Return the number of devices in the mesh."""
        return self.data * self.fsdp * self.tensor


@dataclass(frozen=True, slots=True)
class PeerShape:
    """The settings besides the model that determine a peer's memory."""

    concurrent_rollouts: int
    row_tokens: int  # longest prompt and completion
    cache_tokens: int = 0  # as configured; 0: enough for all rollouts
    spool_bytes: int = 0  # finished rollouts that wait for the coordinator
    versions_on_device: int = 2  # 2: the next version is loaded while the active one generates; 1: in its place
    devices: int = 1  # that the model is divided among
    states_in_memory: bool = True  # whether the store keeps the states that it makes from deltas in memory


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes of one device and of the host; ``phases`` follow each other, each needs its bytes besides ``resident``."""

    resident: Bytes
    phases: Mapping[str, Bytes]
    host: Bytes

    @property
    def peak(self) -> int:
        """Return the bytes of the device at the worst moment."""
        return sum(self.resident.values()) + max((sum(phase.values()) for phase in self.phases.values()), default=0)

    @property
    def host_peak(self) -> int:
        """Return the bytes of the host."""
        return sum(self.host.values())


def parameter_bytes(model: ModelConfig, item_bytes: int = 4) -> int:
    """Return the bytes of all parameters at a number of bytes each."""
    return parameter_count(model) * item_bytes


def snapshot_bytes(model: ModelConfig) -> int:
    """Return the bytes of a whole version as peers read it, without adapters.

    These are rounded parameters; with fp8 or a base in NVFP4, codes and scales of kernels, and all other tensors in the
    carrier's dtype.
    """
    item = _item_bytes(model)
    if not model.precision.startswith("fp8") and not model.has_packed_base:
        return parameter_bytes(model, item)
    total = 0
    for name, shape in parameter_shapes(model).items():
        if model.has_packed_base and is_packable_kernel(name):
            total += math.prod(shape) // 2 + math.prod(shape) // PACKED_BLOCK + 4
        elif model.precision.startswith("fp8") and is_hidden_kernel(name):
            blocks = math.prod(-(-size // _FP8_BLOCK) for size in shape[-2:])
            total += math.prod(shape) + blocks * math.prod(shape[:-2])
        else:
            total += math.prod(shape) * item
    return total


def trained_shapes(model: ModelConfig) -> Shapes:
    """Return the shape of every tensor that is trained by name: of adapters alone, or of all parameters."""
    return adapter_shapes(model) or parameter_shapes(model)


def master_bytes(model: ModelConfig) -> int:
    """Return the bytes of all that is trained in float32."""
    return 4 * sum(map(math.prod, trained_shapes(model).values()))


def version_bytes(model: ModelConfig) -> int:
    """Return the bytes of a version after the first: of adapters and what comes with them, or of a whole snapshot."""
    return _item_bytes(model) * sum(map(math.prod, version_shapes(model).values())) or snapshot_bytes(model)


def moment_bytes(model: ModelConfig, dtype: StateDtype, optimiser: OptimiserName = "adamw") -> int:
    """Return the bytes of the optimiser's moments and its counter. Vectors are float32 whatever the dtype.

    AdamW has two moments of each trained parameter; Muon has only one of each kernel of the layers or adapter.
    """
    total = 4
    for name, shape in trained_shapes(model).items():
        size = math.prod(shape)
        moments = 1 if optimiser == "muon" and (is_hidden_kernel(name) or is_adapter(name)) else 2
        if len(shape) < 2 or dtype == "float32":
            total += moments * 4 * size
        elif dtype == "bfloat16":
            total += moments * 2 * size
        else:
            block = next(one for one in range(min(_MOMENT_BLOCK, shape[-1]), 0, -1) if shape[-1] % one == 0)
            total += moments * (size + 4 * (size // block))
    return total


def activation_bytes(model: ModelConfig, shape: LearnerShape) -> int:
    """Return the bytes of one micro-batch's activations on a device, without tiles of logits.

    Each layer keeps the results of its products, or with remat only its input, and one layer at a time needs all its
    activations.
    """
    item = _item_bytes(model)
    of_layer = model.width * item if shape.remat else _product_bytes(model, shape, item)
    return tokens_per_device(shape) * (model.layers * of_layer + _layer_bytes(model, shape))


def tokens_per_device(shape: LearnerShape) -> int:
    """Return the tokens of a micro-batch on one device, at least one whole row."""
    rows = max(1, shape.micro_batch_tokens // shape.row_tokens // (shape.data * shape.fsdp))
    return rows * shape.row_tokens


def cache_bytes_per_token(model: ModelConfig) -> int:
    """Return the bytes of one token's keys and values in all layers."""
    return 2 * model.layers * model.key_value_heads * model.head_size * _item_bytes(model)


def learner_memory(model: ModelConfig, shape: LearnerShape) -> Estimate:
    """Estimate the memory of a learner, for each device of its mesh and for each host."""
    shards = shape.fsdp * shape.tensor
    masters, moments = _shared(master_bytes(model), shards), moment_bytes(model, shape.state_dtype, shape.optimiser)
    resident = {"parameters (float32)": masters}
    if model.lora is not None:
        resident = {"frozen base": _shared(snapshot_bytes(model), shards), "adapters (float32)": masters}
    if not shape.offload:
        resident[f"optimiser states ({shape.state_dtype})"] = _shared(moments, shards)
    if shape.reference:
        resident["reference parameters (float32)"] = masters
    if shape.critic:
        resident["critic and its states"] = masters + _shared(moments, shards)
    if shape.teacher is not None:
        resident["teacher"] = _shared(snapshot_bytes(shape.teacher), shards)
    if shape.publishes:  # it is copied on the devices, and written while the next step runs
        resident["a version that is published"] = _shared(version_bytes(model), shards)
    passes = {"activations": activation_bytes(model, shape), "tiles of logits": _tile_bytes(model, shape)}
    if shape.fsdp > 1 or _item_bytes(model) < 4 or model.has_packed_base:
        passes["a layer's weights, gathered and rounded"] = _gathered_bytes(model, shape)
    phases = _warm_start(model, shards) if shape.warm_start and model.lora is not None else {}
    phases |= _older_version(model, shape, passes) if shape.recomputes else {}
    phases |= _teaching(shape)
    phases |= {
        "gradients": {"gradients (float32)": masters, **passes},
        "optimiser step": {"gradients (float32)": masters, "the step's own": _step_bytes(model, shape)},
    }
    phases |= _publishing(model, shape, shards) if shape.publishes else {}
    return Estimate(resident, phases, _learner_host(model, shape, moments))


def _warm_start(model: ModelConfig, shards: int) -> dict[str, Bytes]:
    """Return the bytes of the phase in which all weights are trained before they are frozen, besides activations."""
    whole = model.model_copy(update={"lora": None})
    masters = _shared(master_bytes(whole), shards)
    moments = _shared(moment_bytes(whole, "float32", "muon"), shards)
    return {"warm start": {"all weights and gradients (float32)": 2 * masters, "their optimiser states": moments}}


def _publishing(model: ModelConfig, shape: LearnerShape, shards: int) -> dict[str, Bytes]:
    """Return the bytes of the phases in which a version is published, and evaluated where no peer does."""
    largest = max(map(math.prod, trained_shapes(model).values()))
    # The learner's own sampler holds one rollout at least, and more only as far as memory is left.
    cached = paged_tokens(shape.row_tokens) * cache_bytes_per_token(model)
    return {
        "publishing": {"a tensor as it is rounded": _shared(largest * 4, shards)},
        "evaluation without peers": {"keys and values of a rollout": cached},
    }


def _learner_host(model: ModelConfig, shape: LearnerShape, moments: int) -> Bytes:
    """Return the bytes in the memory of one host.

    orbax copies an equal part of a checkpoint in every process, also where devices of several have the same values.
    Versions are not counted: see learner_states.
    """
    state = master_bytes(model) * (1 + shape.reference + shape.critic)
    host = {
        "state that a checkpoint is made of": _shared(state, shape.processes),
        "moments in it": _shared(moments * (1 + shape.critic), shape.processes),
    }
    if shape.offload:
        host["optimiser states, offloaded"] = _shared(moments * shape.data, shape.processes)
    return host


def learner_states(model: ModelConfig, newest: int, *, squashes: bool) -> Bytes:
    """Return the bytes of the states that a learner keeps in the memory of its first host where they fit.

    States that do not fit are on disk: then the page cache holds them only as far as memory is free.

    Args:
        newest: published versions whose states stay in memory.
        squashes: whether deltas start from an older version too.
    """
    version = version_bytes(model)
    found = {"newest published states": newest * version, "state that is published": version}
    return found | ({"state that a squashed delta starts from": version} if squashes else {})


def _older_version(model: ModelConfig, shape: LearnerShape, passes: Bytes) -> dict[str, Bytes]:
    """Return the bytes of the phases in which log-probabilities under an older version are computed."""
    version = _shared(version_bytes(model), shape.fsdp * shape.tensor)
    older = {"an older version": version}
    return {
        "loading an older version": older | {"its layers, stacked": version},
        "behaviour": older | _without_backward(model, shape, passes),
    }


def _teaching(shape: LearnerShape) -> dict[str, Bytes]:
    """Return the bytes of the phase in which the teacher scores a batch, besides its weights; empty without one."""
    teacher = shape.teacher
    if teacher is None:
        return {}
    passes = {"tiles of logits": _tile_bytes(teacher, shape)}
    if shape.fsdp > 1:
        passes["a layer's weights, gathered and rounded"] = _gathered_bytes(teacher, shape)
    return {"teacher": _without_backward(teacher, shape, passes)}


def peer_memory(model: ModelConfig, shape: PeerShape) -> Estimate:
    """Estimate the memory of a peer, for each device of its engine and for its host."""
    version = version_bytes(model)
    share = _shared(version, shape.devices)
    tokens = shape.cache_tokens or shape.concurrent_rollouts * paged_tokens(shape.row_tokens)
    copies = head_copies(model.query_heads, model.key_value_heads, shape.devices)
    cached = tokens * cache_bytes_per_token(model)
    base = 0 if model.lora is None else snapshot_bytes(model)
    resident = {
        "weights": _shared(base, shape.devices) + share,
        "keys and values": _shared(cached * copies, shape.devices) if copies else cached,
    }
    read = min(_READ_TOKENS, shape.concurrent_rollouts * shape.row_tokens)
    reading = LearnerShape(shape.row_tokens, read, fused_attention=True, tensor=shape.devices)
    logits = _shared(shape.concurrent_rollouts * model.vocabulary_size, shape.devices)
    unpacked = {"a layer's weights, unpacked": _gathered_bytes(model, reading)} if model.has_packed_base else {}
    phases = {
        "prefill": {"activations": read * _layer_bytes(model, reading), **unpacked},
        "decode": {"logits": _SAMPLED_COPIES * 4 * logits, **unpacked},
    }
    read_from = {"frozen base": base} if base else {}
    host = read_from | store_memory(model, shape.states_in_memory) | {"finished rollouts": shape.spool_bytes}
    if shape.versions_on_device > 1:
        phases["new version"] = {"weights that come": share}
    else:
        host["version that waits for the device"] = version
    return Estimate(resident, phases, host)


def store_memory(model: ModelConfig, in_memory: bool) -> Bytes:
    """Return the bytes of memory that the states of an origin's or peer's store take.

    A state in memory is changed into the next one in place, or copied while an engine or another peer reads it. States
    on disk take the page cache, which the kernel may drop; the one that is being read is counted.
    """
    version = version_bytes(model)
    if not in_memory:
        return {"pages of the state that is read": version}
    return {"state held in memory": version, "state made while that one is read": version}


def _layer_bytes(model: ModelConfig, shape: LearnerShape) -> int:
    """Return the bytes per token that one layer's backward pass needs on a device.

    Heads and inner size are divided along the mesh's tensor axis, experts are not.
    """
    width, query, key, inner, scores = _ONE_LAYER[model.carrier_dtype]
    shared = query * model.query_heads * model.head_size + key * model.key_value_heads * model.head_size
    shared += 0 if model.experts else inner * model.feed_forward_width
    if not shape.fused_attention:
        shared += scores * model.query_heads * shape.row_tokens
    copies = _EXPERT_COPIES[0] * model.width + _EXPERT_COPIES[1] * model.expert_width
    own = width * model.width + model.experts_per_token * _item_bytes(model) * copies
    return own + -(-shared // shape.tensor)


def _product_bytes(model: ModelConfig, shape: LearnerShape, item: int) -> int:
    """Return the bytes per token that a layer keeps for the backward pass without rematerialisation.

    The products of experts are computed again in any case.
    """
    width, query, key, inner, scores = _PRODUCTS
    shared = query * model.query_heads * model.head_size + key * model.key_value_heads * model.head_size
    shared = item * (shared + (0 if model.experts else inner * model.feed_forward_width))
    if not shape.fused_attention:
        shared += scores * model.query_heads * shape.row_tokens
    return item * width * model.width + -(-shared // shape.tensor)


def _without_backward(model: ModelConfig, shape: LearnerShape, passes: Bytes) -> Bytes:
    """Return the bytes of a forward pass alone, which keeps one layer's activations and no gradient of a tile."""
    one_layer = int(tokens_per_device(shape) * _layer_bytes(model, shape) * _FORWARD_SHARE)
    return passes | {"activations": one_layer, "tiles of logits": passes["tiles of logits"] * 2 // _TILE_COPIES}


def _tile_bytes(model: ModelConfig, shape: LearnerShape) -> int:
    logits = min(_LOGIT_TILE, tokens_per_device(shape) * model.vocabulary_size)
    return _TILE_COPIES * 4 * -(-logits // shape.tensor)


def _step_bytes(model: ModelConfig, shape: LearnerShape) -> int:
    """Return the bytes on a device that the optimiser's step of one tensor needs at most, besides what it updates."""
    sizes = {name: 4 * math.prod(dimensions) for name, dimensions in trained_shapes(model).items()}
    copies = _OFFLOADED_STEP_COPIES if shape.offload else _STEP_COPIES[shape.state_dtype]
    own = _shared(int(copies * max(sizes.values())), shape.fsdp * shape.tensor)
    if shape.optimiser == "adamw":
        return own
    # Each device has whole experts, and orthogonalises its own.
    experts = math.gcd(model.experts, shape.fsdp * shape.tensor) or 1
    kernels = {name: size for name, size in sizes.items() if is_hidden_kernel(name) or is_adapter(name)}
    gathered = max(size // experts if ".expert_" in name else size for name, size in kernels.items())
    return max(own, int(_MUON_COPIES * gathered))


def paged_tokens(row_tokens: int) -> int:
    """Return the tokens of the pages that the longest rollout takes; its prompt's last page is copied."""
    return (-(-row_tokens // _PAGE_TOKENS) + 1) * _PAGE_TOKENS


def _item_bytes(model: ModelConfig) -> int:
    return 4 if model.carrier_dtype == "float32" else 2


def _gathered_bytes(model: ModelConfig, shape: LearnerShape) -> int:
    """Return the bytes of one layer's rounded weights as a device gathers them; experts are then whole."""
    one = parameter_shapes(model.model_copy(update={"layers": 1}))
    sizes = {name: math.prod(own) for name, own in one.items() if name.startswith("layers.")}
    experts = sum(size for name, size in sizes.items() if ".expert_" in name)
    return _item_bytes(model) * (experts + _shared(sum(sizes.values()) - experts, shape.tensor))


def _shared(size_bytes: int, shards: int) -> int:
    return -(-size_bytes // shards)
