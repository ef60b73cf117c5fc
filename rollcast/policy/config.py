"""Define the policy's architecture, which every version record holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from rollcast.policy.published import ARCHITECTURES
from rollcast.runtime.config import ConfigModel
from rollcast.runtime.errors import ConfigError, MalformedMessage

if TYPE_CHECKING:  # these import numpy and more, which commands that only read a configuration do not need
    from rollcast.wire.routes import RouteShape
    from rollcast.wire.versions.records import VersionRecord

StateDtype = Literal["float32", "bfloat16", "int8"]
"""Dtypes of the optimiser's moments."""
OptimiserName = Literal["adamw", "muon"]
EXPERTS_MAX = 1024
"""The most experts of a layer."""


class Llama3Scaling(ConfigModel):
    """Rotary frequencies stretched for longer contexts, as in Llama 3.1 and later (The Llama 3 Herd, section 3.4)."""

    kind: Literal["llama3"] = "llama3"
    """The name of this way of stretching."""
    factor: float = Field(8.0, ge=1.0)
    """Factor by which the longest wavelengths are stretched: those above original_context / low_frequency_factor."""
    low_frequency_factor: float = Field(1.0, gt=0.0)
    """Wavelengths above original_context / this factor are stretched by ``factor``."""
    high_frequency_factor: float = Field(4.0, gt=0.0)
    """Wavelengths below original_context / this factor are unchanged; those between the two are interpolated."""
    original_context: int = Field(8192, ge=1)
    """The context length of the model's first training, in tokens."""

    @model_validator(mode="after")
    def _in_order(self) -> Llama3Scaling:
        if self.high_frequency_factor <= self.low_frequency_factor:
            raise ValueError("high_frequency_factor must be above low_frequency_factor")
        return self


class YarnScaling(ConfigModel):
    """Rotary frequencies stretched as in YaRN (Peng et al. 2023, section 3.2), the same for rows of every length."""

    kind: Literal["yarn"] = "yarn"
    """The name of this way of stretching."""
    factor: float = Field(4.0, ge=1.0)
    """Factor by which wavelengths are stretched that make fewer than turns_min turns in the original context."""
    turns_max: float = Field(32.0, gt=0.0)
    """Wavelengths with more turns in the original context are unchanged; those between the two are interpolated."""
    turns_min: float = Field(1.0, gt=0.0)
    """Wavelengths with fewer turns in the original context are stretched by ``factor``."""
    original_context: int = Field(32_768, ge=1)
    """The context length of the model's first training, in tokens."""
    whole_dimensions: bool = True
    """Whether the dimensions between which wavelengths are interpolated are rounded outwards to whole ones."""
    attention_factor: float | None = Field(None, gt=0.0)
    """Factor of rotated queries and of rotated keys; none: 0.1 ln(factor) + 1 (section 3.4)."""

    @model_validator(mode="after")
    def _in_order(self) -> YarnScaling:
        if self.turns_max <= self.turns_min:
            raise ValueError("turns_max must be above turns_min")
        return self


ATTENTION_TARGETS = ("attention.query", "attention.key", "attention.value", "attention.output")
FEED_FORWARD_TARGETS = ("feed_forward.gate", "feed_forward.up", "feed_forward.down")
RANK_MAX = 1024
"""The highest rank of an adapter."""
PACKED_BLOCK = 16
"""Inputs of a linear layer that share a scale in NVFP4."""


class LoraConfig(ConfigModel):
    """Adapters of low rank over frozen weights (Hu et al. 2021, "LoRA", section 4.1): a layer computes
    x W + ((x A) B) alpha / rank, of which only A and B are trained."""

    rank: int = Field(16, ge=1, le=RANK_MAX)
    """Columns of A and rows of B."""
    alpha: float = Field(32.0, gt=0.0)
    """The adapters' output is multiplied by alpha / rank."""
    targets: tuple[str, ...] = ()
    """The linear layers of each block that have an adapter, for example ["attention.query", "attention.value"]; empty:
    all those of attention and of a dense feed-forward layer. Experts, router, embedding and head cannot have one."""
    base: Literal["model", "nvfp4"] = "model"
    """Form of the frozen weights. model: that of the model's precision. nvfp4: the linear layers that could have an
    adapter are codes of 4 bits with scales (rollcast.policy.products.nvfp4), for learner and rollout alike; their
    numbers are multiplied in the model's precision, float32 or bfloat16."""
    noise_start: float = Field(0.0, ge=0.0)
    """Standard deviation of the noise on the scales of each published version's norms in the second stage, added to
    scales of about 1 (Huang et al. 2025, "QeRL", section 3.3, which takes 0.01); 0: versions have no noise. Rollouts
    explore with it, and the trained policy has none. In bfloat16 scales near 1 are 0.004 to 0.008 apart, so that much
    smaller noise changes few of them."""
    noise_end: float = Field(0.0005, gt=0.0)
    """Standard deviation in the last stage and after it. It falls by the same factor from each stage to the next."""
    noise_stages: int = Field(10, ge=3)
    """Equal parts of noise_steps. The first has no noise, as in the paper's experiments."""
    noise_steps: int = Field(0, ge=0)
    """Learner steps in which the noise falls, most often those of the run."""

    @field_validator("targets")
    @classmethod
    def _known(cls, targets: tuple[str, ...]) -> tuple[str, ...]:
        known = ATTENTION_TARGETS + FEED_FORWARD_TARGETS
        for target in targets:
            if target not in known:
                raise ValueError(f"no linear layer {target!r} can have an adapter; those that can: {', '.join(known)}")
        return tuple(sorted(set(targets)))

    @model_validator(mode="after")
    def _noise_falls(self) -> LoraConfig:
        if self.noisy and not (self.noise_end <= self.noise_start and self.noise_stages <= self.noise_steps):
            raise ValueError(
                "noise (noise_start above 0) needs noise_end of at most noise_start, and noise_steps of at least "
                "noise_stages, most often the steps of the run"
            )
        return self

    @property
    def noisy(self) -> bool:
        """Return whether published versions have noise on the scales of norms (rollcast.policy.norm_noise)."""
        return self.noise_start > 0.0

    @property
    def scale(self) -> float:
        """Return the factor of the adapters' output."""
        return self.alpha / self.rank


RopeScaling = Annotated[Llama3Scaling | YarnScaling, Field(discriminator="kind")]


class ModelConfig(ConfigModel):
    """The architecture of a decoder-only transformer of the Qwen3, Qwen3-MoE, Qwen2.5 and Llama 3 families.

    The defaults are those of the demonstration model with 0.3 million parameters. Qwen3 normalises queries and keys,
    Qwen2.5 adds biases to queries, keys and values, Llama 3 does neither. With ``experts`` every feed-forward layer is
    a mixture of experts.
    """

    preset: str = ""
    """The name of a published architecture, for example qwen3-4b, whose values apply where none is given here. It is
    empty once those values have been applied."""
    vocabulary_size: int = Field(0, ge=0)
    """The number of tokens; 0 until the tokenizer is known."""
    layers: int = Field(2, ge=1)
    """The number of transformer blocks."""
    width: int = Field(128, ge=8)
    """Size of the residual stream."""
    query_heads: int = Field(8, ge=1)
    """The number of attention heads."""
    key_value_heads: int = Field(4, ge=1)
    """The number of heads of keys and values (grouped-query attention)."""
    head_size: int = Field(16, ge=2)
    """Size of one head."""
    feed_forward_width: int = Field(256, ge=8)
    """Inner size of SwiGLU. A model with experts has no layer of this size."""
    experts: int = Field(0, ge=0, le=EXPERTS_MAX)
    """The number of experts of each feed-forward layer; 0: the layers are dense."""
    experts_per_token: int = Field(0, ge=0)
    """The number of experts that each token is sent to."""
    expert_width: int = Field(0, ge=0)
    """Inner size of each expert's SwiGLU."""
    normalised_routes: bool = True
    """Whether the probabilities of a token's chosen experts are scaled to add up to 1."""
    balance_coefficient: float = Field(0.001, ge=0.0)
    """Factor of the loss that keeps the experts' loads even, as the model was trained with."""
    rope_base: float = Field(10_000.0, gt=1.0)
    """Base of the rotary position embedding."""
    rope_scaling: RopeScaling | None = None
    """Stretching of rotary frequencies by ``kind``, llama3 or yarn; none: they are not stretched."""
    qk_norm: bool = True
    """Whether queries and keys are RMS-normalised, each head separately."""
    attention_bias: bool = False
    """Whether queries, keys and values have a bias."""
    context_tokens_max: int = Field(32_768, ge=1)
    """The longest sequence that the model is meant for, in tokens; positions beyond it were never trained."""
    rms_epsilon: float = Field(1e-6, gt=0.0)
    """The constant that is added inside RMSNorm's root."""
    tied_embeddings: bool = True
    """Whether the output head is the embedding's transpose."""
    precision: Literal["float32", "bfloat16", "fp8", "fp8-naive"] = "float32"
    """The precision of the forward pass and of the snapshot. fp8: kernels and their activations are E4M3, the same in
    learner and rollout. fp8-naive, for comparisons: a bfloat16 learner whose rollouts read E4M3."""
    carrier: Literal["float32", "bfloat16"] = "float32"
    """Dtype of the values between the layers and of all weights except the kernels, with precision fp8."""
    lora: LoraConfig | None = None
    """Adapters, of which a run trains and publishes nothing else; none: all weights are trained. Set by the learner's
    section ``lora``."""

    @model_validator(mode="before")
    @classmethod
    def _take_preset(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not values.get("preset"):
            return values
        given = dict(values)
        name = given.pop("preset")
        if name not in ARCHITECTURES:
            raise ValueError(f"no preset {str(name)[:60]!r}; there are {', '.join(ARCHITECTURES)}")
        return {**ARCHITECTURES[name], **given}

    @model_validator(mode="after")
    def _experts_complete(self) -> ModelConfig:
        if self.experts and not (1 <= self.experts_per_token <= self.experts and self.expert_width >= 8):
            raise ValueError("with experts, experts_per_token must be 1 to experts and expert_width at least 8")
        if not self.experts and (self.experts_per_token or self.expert_width):
            raise ValueError("experts_per_token and expert_width need experts")
        return self

    @model_validator(mode="after")
    def _adapters_possible(self) -> ModelConfig:
        if self.lora is None:
            return self
        if self.precision == "fp8-naive":
            raise ValueError('adapters need a base that learner and rollout read alike: precision "fp8-naive" has none')
        known = linear_layers(self)
        unknown = [target for target in self.lora.targets if target not in known]
        if unknown or not self.lora.targets:
            raise ValueError(f"this model's layers with an adapter can be {', '.join(known)}, not {unknown}")
        if self.has_packed_base:
            self._check_packing()
        return self

    def _check_packing(self) -> None:
        if self.precision == "fp8":
            raise ValueError('lora.base "nvfp4" is multiplied in the model\'s precision: choose bfloat16 or float32')
        inputs = {self.width, self.query_heads * self.head_size, 0 if self.experts else self.feed_forward_width}
        if any(size % PACKED_BLOCK for size in inputs):
            raise ValueError(f'lora.base "nvfp4" needs linear layers whose inputs {PACKED_BLOCK} divides')

    @property
    def has_packed_base(self) -> bool:
        """Return whether the linear layers of the blocks are published as codes of 4 bits."""
        return self.lora is not None and self.lora.base == "nvfp4"

    @property
    def route_shape(self) -> RouteShape:
        """Return the shape of the record of a token's experts, which is empty if the layers are dense."""
        from rollcast.wire.routes import RouteShape

        return RouteShape(self.layers, self.experts, self.experts_per_token)

    @property
    def carrier_dtype(self) -> str:
        """Return the dtype of the values between the layers: float32 or bfloat16."""
        if self.precision == "fp8-naive":
            return "bfloat16"
        return self.carrier if self.precision == "fp8" else self.precision


def linear_layers(model: ModelConfig) -> tuple[str, ...]:
    """Return the linear layers of each block that can have an adapter, sorted."""
    return tuple(sorted(ATTENTION_TARGETS + (() if model.experts else FEED_FORWARD_TARGETS)))


def adapted(model: ModelConfig, lora: LoraConfig | None) -> ModelConfig:
    """Return the architecture with these adapters; without targets of their own on every linear layer of its blocks.

    Raises:
        ConfigError: a target is no linear layer of this model, or the precision allows no adapters.
    """
    if lora is None:
        return model
    targets = lora.targets or linear_layers(model)
    values = model.model_dump() | {"lora": lora.model_dump() | {"targets": targets}}
    try:
        return ModelConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(
            "the model cannot have the adapters of the section lora",
            cause=str(error.errors()[0]["msg"]).removeprefix("Value error, "),
            fix="change lora.targets or the model's precision, or remove the section to train all weights",
        ) from None


def described_model(record: VersionRecord) -> ModelConfig:
    """Return the architecture that a version's record describes.

    Raises:
        MalformedMessage: this release does not know the architecture.
    """
    try:
        return ModelConfig.model_validate_json(record.model_json)
    except ValidationError as error:
        raise MalformedMessage(
            f"version {record.version} describes a model that this release cannot run",
            cause=str(error.errors()[0]["msg"]),
            fix="run the same release on the learner and on the peers",
        ) from None
