"""Check and convert the facts of the run that the coordinator reports when the learner's session opens."""

from __future__ import annotations

from dataclasses import dataclass, replace

from learner.checkpoints.checkpoint import HostState
from learner.config import LearnerConfig
from learner.objective.config import check_group_size
from learner.training.batch_check import BatchRules
from learner.training.starting_model import check_teacher, starting_model
from learner.training.trained_ids import TrainedIds
from rollcast.policy.config import ModelConfig
from rollcast.runtime.errors import CheckpointError, ConfigError
from rollcast.wire import limits
from rollcast.wire.ids import Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollout_messages import sampling_from_pb
from rollcast.wire.rollouts import Sampling
from rollcast.wire.routes import RouteShape
from rollcast.wire.text.tokenizer import read_record
from rollcast.wire.version_swap import AtVersionSwap, at_version_swap_from_pb


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The facts of the run, checked and converted."""

    info: pb.RunInfo
    model: ModelConfig
    sampling: Sampling
    at_version_swap: AtVersionSwap

    @classmethod
    def of(cls, info: pb.RunInfo, config: LearnerConfig) -> RunFacts:
        """Check and convert the coordinator's message.

        Raises:
            ConfigError: versions are published so rarely that every rollout would be too old, or groups are too small
                for the objective; or rollouts keep keys and values where their log-probabilities are recomputed;
                or router replay is on, but the model has no experts, or routes would be too large.
            ModelError: the model to start from cannot be used, or has another tokenizer.
            MalformedMessage: the tokenizer or the sampling parameters are malformed.
        """
        kappa, limit = info.publish_every_steps, info.staleness_limit
        if kappa > limit + 1:
            raise ConfigError(
                f"publish_every_steps {kappa} does not go with staleness_limit {limit}",
                cause="the newest version would be too old to train on before the next one is published",
                fix="publish at least every staleness_limit + 1 steps",
            )
        at_version_swap = at_version_swap_from_pb(info.at_version_swap)
        config.check_swap(at_version_swap)
        check_group_size(config.objective, info.samples_per_group)
        tokenizer = read_record(info.tokenizer_json)
        model = starting_model(config, tokenizer)
        check_teacher(config, tokenizer, info.sampling.temperature)
        # The learner has no text: the coordinator cuts what it has sampled for an evaluation, before it is scored.
        sampling = replace(sampling_from_pb(info.sampling), stop_strings=())
        if info.router_replay:
            _check_replay(model.route_shape, info.prompt_tokens_max + sampling.max_new_tokens)
        return cls(info, model, sampling, at_version_swap)

    @property
    def model_json(self) -> str:
        """Return the architecture as JSON, as in version records and checkpoints."""
        return self.model.model_dump_json()

    @property
    def row_tokens(self) -> int:
        """Return the length of the longest prompt plus the longest completion, in tokens."""
        return self.info.prompt_tokens_max + self.sampling.max_new_tokens

    def host_state(
        self,
        seed: int,
        step: int,
        epoch: int,
        newest_version: Version,
        trained: TrainedIds,
        figures: dict[str, float],
        base_hash: str,
    ) -> HostState:
        """Return the host part of a checkpoint."""
        return HostState(
            step=step,
            newest_version=newest_version,
            run_id=self.info.run_id,
            epoch=epoch,
            seed=seed,
            tokenizer_json=self.info.tokenizer_json,
            model_json=self.model_json,
            base_hash=base_hash,
            sampling={
                "temperature": self.sampling.temperature,
                "max_new_tokens": self.sampling.max_new_tokens,
                "stop_token_ids": list(self.sampling.stop_token_ids),
            },
            prompt_tokens_max=self.info.prompt_tokens_max,
            trained_ranges=trained.ranges(),
            figures=figures,
        )

    @property
    def rules(self) -> BatchRules:
        """Return the rules that every batch follows."""
        return BatchRules(
            staleness_limit=self.info.staleness_limit,
            groups_per_step=self.info.groups_per_step,
            samples_per_group=self.info.samples_per_group,
            vocabulary_size=self.model.vocabulary_size,
            row_tokens=self.row_tokens,
            routes=self.model.route_shape if self.info.router_replay else None,
        )

    def check_checkpoint(self, host: HostState) -> None:
        """Check that training can resume from a checkpoint.

        Raises:
            CheckpointError: the checkpoint is of another run or model, or newer than the coordinator's ledger.
        """
        info = self.info
        opened = {start.epoch for start in info.epochs}
        if host.run_id != info.run_id or not opened.issuperset(range(host.epoch + 1, info.epoch + 1)):
            raise CheckpointError(
                "the checkpoint in run_folder is of another run",
                cause=f"it is of run {host.run_id}, epoch {host.epoch}; this is run {info.run_id}, epoch {info.epoch}",
                fix="choose the run's own run_folder, or an empty one",
            )
        if bool(host.base_hash) != (self.model.lora is not None):
            before, now = ("adapters", "all weights") if host.base_hash else ("all weights", "adapters")
            raise CheckpointError(
                f"the run was started with {before}, and the configuration trains {now}",
                cause="the state of the one says nothing of the other",
                fix="restore the section lora as it was, or export the run's policy and start a run from that",
            )
        if host.model_json != self.model_json or host.tokenizer_json != info.tokenizer_json:
            raise CheckpointError(
                "the checkpoint's model or tokenizer is not the configured one",
                fix="use the model and the task that the run was started with",
            )
        if host.step > info.recorded_batches or host.epoch > info.epoch:
            raise CheckpointError(
                f"the checkpoint is of step {host.step}, the coordinator recorded {info.recorded_batches} batches",
                cause="the coordinator's ledger is older than the checkpoint",
                fix="restore the ledger and the checkpoint from the same time, or start the run anew",
            )


def _check_replay(shape: RouteShape, row_tokens: int) -> None:
    """Check that a model, and its longest rollout with its prompt, go with router replay."""
    if not shape.experts:
        raise ConfigError(
            "router replay is on, but the model has no experts",
            cause="it repeats which experts of a mixture-of-experts model a token went through",
            fix="set the coordinator's sampling.router_replay to false, or train a model with experts",
        )
    if row_tokens * shape.token_bytes > limits.ROUTES_BYTES_MAX:
        raise ConfigError(
            f"the routes of a prompt and completion of {row_tokens} tokens are too large",
            cause=f"they take {shape.token_bytes} bytes a token, and a rollout's at most {limits.ROUTES_BYTES_MAX}",
            fix="set the coordinator's sampling.prompt_tokens_max and new_tokens_max to at most "
            f"{limits.ROUTES_BYTES_MAX // shape.token_bytes} together, or sampling.router_replay to false",
        )
