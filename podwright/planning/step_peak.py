"""Size the memory of a step, in bytes, at each moment when it may have its peak."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from podwright.planning.activations import Activations
from podwright.planning.gathered_weights import BF16_BYTES, GatheredWeights
from podwright.planning.states import StateBytes, States
from podwright_training.config.parallel_dims import blocks_of_stage

FP32_BYTES = 4.0
GRADIENT_BYTES = BF16_BYTES + FP32_BYTES  # Per parameter: its gradient in bf16, and in fp32 for the reduction.
HIDDEN_STATES_AT_ENDS = 2  # Embedding, last norm and head keep so many; one less if the head is divided.


@dataclass(frozen=True, kw_only=True)
class StepMoment:
    """Bytes in use at one moment of a step."""

    states: StateBytes
    gathered_parameters: float
    activations: float
    logits: float = 0.0

    @property
    def total(self) -> float:
        """The sum of all items."""
        return self.states.total + self.gathered_parameters + self.activations + self.logits


class StepPeak:
    """Size the moments of a step that may need the most memory."""

    def __init__(self, states: States, weights: GatheredWeights, activations: Activations) -> None:
        self.states, self.weights, self.activations = states, weights, activations
        self.model, self.layout = activations.model, activations.layout

    def highest(self) -> StepMoment:
        """Return the moment with the most memory."""
        return max(self._moments(), key=lambda moment: moment.total)

    def _moments(self) -> Iterator[StepMoment]:
        """Yield each moment when a step may have its peak.

        A loss in chunks has its gradients before the backward pass begins, so logits and the block that is worked on
        are not there at once: counted with ``podwright-train dry-run``.
        """
        layout = self.layout
        has_chunked_loss = layout.loss_chunk_tokens or layout.pipeline > 1
        if layout.splits_backward:
            yield from self._with_split_backward()
        elif self.weights.gathered_once:
            yield from self._with_weights_gathered_once()
        elif has_chunked_loss and self.weights.fully_sharded:
            yield from self._with_blocks_gathered_in_turn()
        else:
            yield self._moment(
                gathered_parameters=self.weights.blocks_bytes() + self.weights.end_bytes(),
                activations=self.activations.kept_bytes() + self.activations.working_bytes(),
                logits=self.logit_bytes() if layout.pipeline == 1 else 0.0,
            )

    def _moment(
        self, *, gathered_parameters: float, activations: float, logits: float = 0.0, missing_parameters: float = 0.0
    ) -> StepMoment:
        return StepMoment(
            states=self.states.of_rank(missing_parameters),
            gathered_parameters=gathered_parameters,
            activations=activations,
            logits=logits,
        )

    # ---- weights gathered block by block -------------------------------------------------------------

    def _with_blocks_gathered_in_turn(self) -> Iterator[StepMoment]:
        """Yield the moments of the loss, of a block being computed, and of the head's gradient."""
        end = self.weights.end_parameters
        activations = self.activations.kept_bytes() + self._kept_at_ends()
        # The last stage of a pipeline, which has the loss, holds one micro-batch.
        one_micro_batch = activations / self.activations.micro_batches_in_flight
        root = BF16_BYTES * end if self.model.tied else 0.0  # A tied embedding stays gathered.
        head_and_buffer = 2 * BF16_BYTES * end if self.layout.sharding_ranks > 1 else 0.0
        yield self._moment(gathered_parameters=head_and_buffer, activations=one_micro_batch, logits=self.logit_bytes())
        yield from self._of_a_block(activations, root)
        yield self._moment(
            gathered_parameters=root, activations=activations - one_micro_batch, logits=GRADIENT_BYTES * end
        )

    def _of_a_block(self, activations: float, root: float) -> Iterator[StepMoment]:
        """Yield the moments when a block is computed, and when its gradient is complete.

        The gradient of the block before is reduced meanwhile, in fp32; the block's own is in bf16. Experts are gathered
        by themselves, and reduced when the next block's are not yet worked on.
        """
        computing, complete = (0.0, FP32_BYTES) if self.model.expert_blocks else (FP32_BYTES, GRADIENT_BYTES)
        yield self._moment(
            gathered_parameters=self.weights.blocks_bytes(gradient_bytes=computing) + root,
            activations=activations + self.activations.working_bytes(),
        )
        yield self._moment(
            gathered_parameters=self.weights.blocks_bytes(gradient_bytes=complete) + root, activations=activations
        )

    def _kept_at_ends(self) -> float:
        """Return the bytes that embedding, last norm and head keep of a micro-batch."""
        hidden_states = HIDDEN_STATES_AT_ENDS - (self.weights.vocabulary_shards > 1)
        return hidden_states * self.activations.tokens * self.activations.input_bytes

    # ---- weights gathered once -----------------------------------------------------------------------

    def _with_weights_gathered_once(self) -> Iterator[StepMoment]:
        """Yield the moments of the first stage, of the last one with the loss, and while the embedding is reduced.

        A gradient that is reduced after each micro-batch is there in fp32 until the next one is complete: in a
        pipeline, at first the embedding's, of the micro-batch before, and one of each other stage of the rank. Then a
        block's own is there too, in bf16. The loss has the buffer that the head came in, or a tied one's is reduced in.
        """
        layout, end, block = self.layout, self.weights.end_parameters, self.weights.block_parameters
        activations, working = self.activations.kept_bytes(), self.activations.working_bytes()
        weights = BF16_BYTES * sum(self.states.local_parameters())
        one_micro_batch = activations / self.activations.micro_batches_in_flight
        reduced = complete = head = other_micro_batches = 0.0
        if not layout.whole_gradients:
            stages = FP32_BYTES * block * (layout.virtual_stages - 1)
            reduced = FP32_BYTES * (max(end, block) if layout.pipeline > 1 else block) + stages
            complete = GRADIENT_BYTES * block + stages
            head = stages or (FP32_BYTES if self.model.tied else BF16_BYTES) * end
            other_micro_batches = activations - one_micro_batch
        yield self._moment(gathered_parameters=weights + reduced, activations=activations + working)
        yield self._moment(gathered_parameters=weights + complete, activations=activations)
        if not layout.loss_chunk_tokens:
            yield self._moment(
                gathered_parameters=weights, activations=one_micro_batch + working, logits=self.logit_bytes()
            )
            return
        yield self._moment(
            gathered_parameters=weights + head,
            activations=one_micro_batch + self._kept_at_ends(),
            logits=self.logit_bytes(),
        )
        yield self._moment(gathered_parameters=weights, activations=other_micro_batches, logits=GRADIENT_BYTES * end)

    # ---- a pipeline that splits the backward pass ------------------------------------------------------

    def _with_split_backward(self) -> Iterator[StepMoment]:
        """Yield the memory of each rank of a pipeline that splits the backward pass, before and in each pass.

        What a block kept or recomputed for the gradient of its input stays until that of its weights is complete, with
        the gradients of its matrices' results (``stage_backward_input`` of torch). The first stage has no such gradient
        to compute: its whole backward pass comes with its weights. All weights stay gathered. Ranks without embedding
        or head have less of the states: often it is one of those that keeps most.
        """
        layout = self.layout
        last_stage = layout.pipeline * layout.virtual_stages - 1
        sizes = [self._stage_bytes(stage, last_stage) for stage in range(last_stage + 1)]
        weights, working = BF16_BYTES * sum(self.states.local_parameters()), self.activations.working_bytes()
        for rank in range(layout.pipeline):
            missing = self.states.missing_parameters(rank)
            activations = peak = peak_with_loss = 0.0
            for kind, stage, _ in layout.actions(rank):
                forward, split = sizes[stage]
                activations += {"forward": forward, "input": split - forward, "weight": -split}[kind]
                if kind == "forward" and stage == last_stage:
                    peak_with_loss = max(peak_with_loss, activations)
                peak = max(peak, activations)
            gathered = weights - BF16_BYTES * missing
            yield self._moment(missing_parameters=missing, gathered_parameters=gathered, activations=peak + working)
            if peak_with_loss:
                yield self._moment(
                    missing_parameters=missing,
                    gathered_parameters=gathered,
                    activations=peak_with_loss,
                    logits=self.logit_bytes(),
                )

    def _stage_bytes(self, stage: int, last_stage: int) -> tuple[float, float]:
        """Return a stage's bytes of a micro-batch after its forward pass, and after the gradient of its input."""
        blocks = len(blocks_of_stage(stage, last_stage + 1, self.model.layers))
        ends = 0.0
        if stage == last_stage and self.layout.loss_chunk_tokens:  # A loss in chunks has the gradient of the head.
            ends = BF16_BYTES * self.weights.end_parameters
        activations = blocks * self.activations.kept_bytes_per_block() + ends
        return activations, blocks * self.activations.split_bytes_per_block() + ends if stage else activations

    # ---- loss ------------------------------------------------------------------------------------------

    def logit_bytes(self) -> float:
        """Size logits (bf16), probabilities and gradients (fp32), which the last pipeline stage has."""
        layout, model, constants = self.layout, self.model, self.activations.constants
        software, tokens = self.activations.software, self.activations.tokens
        own_tokens = tokens / layout.tensor
        if not layout.loss_chunk_tokens:
            return constants("logit_bytes", software.name) * own_tokens * model.vocab
        # Gradients of the head and of the hidden states exist at the same time; ranks that divide the head gather the
        # hidden states of all their tokens for it.
        gradients = 4.0 * self.weights.end_parameters + 2.0 * own_tokens * model.hidden_size
        if self.weights.vocabulary_shards > 1:
            gradients += 2 * 2.0 * tokens * model.hidden_size
        width = constants("chunk_logit_bytes", software.name)
        return width * min(own_tokens, layout.loss_chunk_tokens) * model.vocab + gradients
