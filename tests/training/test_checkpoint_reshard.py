"""A run whose number of ranks and layout change from start to start is the run whose ranks stay the same."""

import pytest

from podwright_testing.metrics import logged
from podwright_training.checkpoint import trainer_state
from podwright_training.run_folder import RunFolder

SEQUENCES = 12  # per step, on any number of ranks
CONTEXT = 32  # of tiny_flags
VALIDATED = 13  # sequences that no number of ranks divides
LAYOUTS = {  # steps: ranks, shares of the data, options
    2: (4, 4, {}),
    4: (2, 2, {}),
    6: (3, 3, {}),
    8: (4, 2, {"tensor_parallel": 2}),
    10: (2, 1, {"pipeline_parallel": 2}),
    12: (4, 4, {}),
}


@pytest.fixture
def train(call_ranks, tiny_flags):
    """Trains to a step on some ranks."""

    def train(folder, steps, ranks, shares, options):
        options = {"max_steps": steps, "data_streams": 12, "lr": 1e-3, "min_lr": 1e-3, "warmup": 0} | options
        options |= {"tie_word_embeddings": True}
        options |= {"validation_freq": 2, "validation_sequences": VALIDATED, "val_batch_size": 2}
        size = SEQUENCES // shares
        flags = tiny_flags(folder, **options, train_batch_size=size)
        status, output = call_ranks(ranks, "train", *flags)
        assert status == 0, output

    return train


@pytest.mark.slow
def test_a_checkpoint_goes_on_in_every_layout(train, tmp_path):
    """4 ranks → 2 → 3 → tensor parallel on 2 of 4 → a pipeline of 2, both with the embedding → 4: the loss to 1e-6."""
    for steps, layout in LAYOUTS.items():
        train(tmp_path / "changing", steps, *layout)
    train(tmp_path / "same", 12, 4, 4, {})
    changing, same = (
        {event["step"]: event for event in logged(RunFolder(tmp_path / name), "train")} for name in ("changing", "same")
    )
    assert [event["step"] for event in logged(RunFolder(tmp_path / "changing"), "start")] == [0, *list(LAYOUTS)[:-1]]
    for step, event in same.items():
        assert changing[step]["batch_digest"] == event["batch_digest"]
        assert changing[step]["loss"] == pytest.approx(event["loss"], abs=1e-6)
    assert_validations_agree(tmp_path)
    paths = [tmp_path / name / "checkpoints" / "step-00000012" for name in ("changing", "same")]
    first, second = (trainer_state.read_state(path).data for path in paths)
    assert first == second


def assert_validations_agree(folder):
    """Every layout validates on the same sequences."""
    changing, same = (
        {event["step"]: event for event in logged(RunFolder(folder / name), "validation")}
        for name in ("changing", "same")
    )
    assert list(changing) == list(same) == list(LAYOUTS)
    assert {event["tokens"] for event in (*changing.values(), *same.values())} == {VALIDATED * CONTEXT}
    for step, event in same.items():
        assert changing[step]["loss"] == pytest.approx(event["loss"], abs=1e-6)
