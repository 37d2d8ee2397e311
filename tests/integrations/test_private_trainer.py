"""The Trainer of transformers, private: one mechanism, one account, and honest refusals."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

pytest.importorskip("transformers", reason="needs the extra hf: pip install steppe[hf]")
pytest.importorskip("peft", reason="needs the extra hf: pip install steppe[hf]")

from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    TrainerCallback,
    TrainingArguments,
)

import steppe
from integrations.hf_models import built, text
from steppe.errors import ConfigurationError, DataError, MisuseError, UnsupportedModelError
from steppe.integrations.record_losses import record_losses
from steppe.integrations.transformers import PrivateTrainer
from steppe.randomness import SeededSource

POPULATION, EPSILON = 40, 3.0


@pytest.fixture(autouse=True)
def libraries_may_warn() -> Iterator[None]:
    """Of what changes in their next versions."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", module="peft")
        yield


class Small(nn.Module):
    """A classifier with the interface of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.layer(inputs)
        loss = {} if labels is None else {"loss": F.cross_entropy(logits, labels)}
        return {**loss, "logits": logits}


def numbers(records: int = POPULATION) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(records, 5, generator=generator)
    return [{"inputs": x, "labels": int(x[:3].argmax())} for x in inputs]


def small() -> Small:
    torch.manual_seed(0)
    return Small()


def trainer_of(folder: Path, **given: Any) -> PrivateTrainer:
    """A trainer; names of TrainingArguments go there."""
    own = ("model", "train_dataset", "eval_dataset", "plan", "ledger", "source", "callbacks")
    own += ("compute_loss_func", "data_collator", "optimizers", "kind")
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 8,
        "max_steps": 10,
        "learning_rate": 0.1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        **{name: value for name, value in given.items() if name not in own},
    }
    arguments = {
        "model": None,
        "train_dataset": numbers(),
        "plan": {"noise_multiplier": 1.0, "delta": 1e-3},  # calibrating takes a while
        **{name: value for name, value in given.items() if name in own},
    }
    kind = arguments.pop("kind", PrivateTrainer)
    arguments["model"] = arguments["model"] or small()
    return kind(args=TrainingArguments(**settings), **arguments)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A whole run in two parts a batch, with checkpoints and an evaluation."""
    folder = tmp_path_factory.mktemp("run")
    trainer = trainer_of(
        folder,
        plan={"epsilon": EPSILON, "delta": 1e-3},
        eval_dataset=numbers(8),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        max_steps=-1,
        logging_steps=2,
        save_strategy="steps",
        save_steps=3,
        eval_strategy="steps",
        eval_steps=5,
    )
    return SimpleNamespace(folder=folder, trainer=trainer, result=trainer.train())


def test_batch_and_steps_are_those_of_the_arguments(run: Any) -> None:
    plan = run.trainer.plan
    assert (plan.batch_size, plan.total_steps, plan.population) == (8, 10, POPULATION)
    assert plan.clip == steppe.Flat(1.0)  # max_grad_norm
    assert run.result.global_step == 10
    assert run.trainer.epsilon() == plan.epsilon_spent() <= EPSILON


def test_private_records_are_not_scored_later_either(run: Any) -> None:
    lines = len(run.trainer.state.log_history)
    private = run.trainer.train_dataset
    for given in (private, torch.utils.data.Subset(private, range(8)), {"own": private}):
        with pytest.raises(ConfigurationError, match="are the private records"):
            run.trainer.evaluate(given)
    assert len(run.trainer.state.log_history) == lines


def test_nothing_private_is_logged(run: Any) -> None:
    state = json.loads((run.folder / "checkpoint-9" / "trainer_state.json").read_text())
    lines = state["log_history"]
    for line in (*lines, run.result.metrics):
        assert not {"loss", "train_loss", "grad_norm", "total_flos"} & line.keys()
    assert state["total_flos"] == state["num_input_tokens_seen"] == 0
    assert math.isnan(run.result.training_loss)
    spent = {line["step"]: line["epsilon"] for line in lines if "epsilon" in line}
    plan = run.trainer.plan
    assert spent == {step: plan.epsilon_spent(step) for step in (2, 3, 4, 6, 8, 9)}
    assert [line["eval_loss"] > 0 for line in lines if "eval_loss" in line] == [True]
    assert run.result.metrics["epsilon"] == plan.epsilon_spent()


def test_a_second_run_in_the_same_folder_is_refused(run: Any) -> None:
    with pytest.raises(MisuseError, match="contains a private run already"):
        run.trainer.train()
    assert [r.charged for r in run.trainer.ledger.runs().values()] == [10]


def test_saved_weights_carry_the_statement(run: Any, tmp_path: Path) -> None:
    run.trainer.save_model(str(tmp_path))
    run.trainer.save_model(str(tmp_path))
    card = (tmp_path / "README.md").read_text()
    assert card.count("## Privacy") == 1
    assert "(ε, δ) = (3.000, 0.001) for all 10 steps of the plan, of which 10 are charged" in card
    statement = json.loads((tmp_path / "privacy_statement.json").read_text())
    assert statement == run.trainer.statement().to_dict()
    assert statement["isolation"] == "proven"


class Crash(TrainerCallback):
    """Ends the process after a step, as far as a test can."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise KeyboardInterrupt


def test_steps_after_the_last_checkpoint_stay_charged(tmp_path: Path) -> None:
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 4}
    with pytest.raises(KeyboardInterrupt):
        trainer_of(tmp_path, callbacks=[Crash(7)], **options).train()
    trainer = trainer_of(tmp_path, **options)
    (before,) = trainer.ledger.runs().values()
    result = trainer.train(resume_from_checkpoint=True)
    (after,) = trainer.ledger.runs().values()
    assert (before.charged, after.charged) == (7, 10)
    assert result.global_step == 7  # four of the checkpoint, and the three that were left
    assert trainer.epsilon() == trainer.plan.epsilon_spent()


def test_a_run_is_resumed_with_its_own_plan(tmp_path: Path) -> None:
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 4}
    with pytest.raises(KeyboardInterrupt):
        trainer_of(tmp_path, callbacks=[Crash(5)], **options).train()
    other = trainer_of(tmp_path, **options, plan={"epsilon": 4.0, "delta": 1e-3})
    with pytest.raises(DataError, match="belongs to a run of another plan"):
        other.train(resume_from_checkpoint=True)
    with pytest.raises(ConfigurationError, match="contains no checkpoint"):
        trainer_of(tmp_path / "new").train(resume_from_checkpoint=True)


@pytest.mark.parametrize("parts", [1, 3])
def test_a_run_takes_the_steps_of_make_private(parts: int, tmp_path: Path) -> None:
    """The same weights as a plain private loop with the same randomness: no second noise, clip,
    scale or step."""

    def ready() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = small()
        return model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

    model, optimizer = ready()
    plan = {"noise_multiplier": 1.0, "delta": 1e-3, "clip": steppe.Flat(0.3)}
    trainer = trainer_of(
        tmp_path,
        model=model,
        plan=plan,
        source=SeededSource(3),
        per_device_train_batch_size=9 // parts,
        gradient_accumulation_steps=parts,
        optimizers=(optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)),
    )
    trainer.train()
    assert trainer.epsilon() == math.inf
    assert "NOT PRIVATE" in str(trainer.statement())

    expected, optimizer = ready()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    records = numbers()
    data = {
        "inputs": torch.stack([r["inputs"] for r in records]),
        "labels": torch.tensor([r["labels"] for r in records]),
    }
    private = steppe.make_private(
        expected,
        optimizer,
        data,
        steppe.Plan(**plan, batch_size=9, steps=10, population=POPULATION),
        objective=record_losses,
        source=SeededSource(3),
    )
    for batch in private:
        private.step(batch)
        scheduler.step()
    for found, wanted in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found, wanted)


def test_batches_are_poisson_of_the_logical_size_and_empty_ones_are_stepped(tmp_path: Path) -> None:
    sizes: list[int] = []

    class Counting(PrivateTrainer):
        def _take(self) -> None:
            sizes.append(sum(len(part["labels"]) for part in self._parts))
            super()._take()

    trainer = trainer_of(
        tmp_path,
        kind=Counting,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=2,
        max_steps=150,
    )
    trainer.train()
    mean = sum(sizes) / len(sizes)
    assert len(sizes) == 150 == trainer.plan.total_steps
    assert 0 in sizes  # by chance in fewer than one of 10⁷ runs not
    assert abs(mean - 2) < 5 * (2 * 0.95 / 150) ** 0.5


def rows_of(columns: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    size = len(columns["labels"])
    return [{name: column[row] for name, column in columns.items()} for row in range(size)]


def same_logits(one: Any, two: Any, batch: dict[str, Tensor]) -> None:
    with torch.no_grad():
        torch.testing.assert_close(one.eval()(**batch).logits, two.eval()(**batch).logits)


def test_the_full_model_is_saved_as_transformers_saves_it(tmp_path: Path) -> None:
    model = built("bert", dropout=0.1)
    trainer = trainer_of(tmp_path, model=model, train_dataset=rows_of(text(12)), max_steps=2)
    trainer.train()
    trainer.save_model()
    files = {path.name for path in tmp_path.iterdir()}
    assert {"README.md", "privacy_statement.json", "model.safetensors"} <= files
    loaded = AutoModelForSequenceClassification.from_pretrained(str(tmp_path))
    same_logits(model, loaded, text(3))


def test_of_an_adapted_language_model_the_adapter_alone_is_saved(tmp_path: Path) -> None:
    from peft import PeftModel

    model = built("gpt2", dropout=0.1, adapter=True)
    data = rows_of(text(12, "words"))
    trainer = trainer_of(tmp_path, model=model, train_dataset=data, max_steps=2)
    trainer.train()
    trainer.save_model()
    files = {path.name for path in tmp_path.iterdir()}
    assert {"README.md", "privacy_statement.json", "adapter_model.safetensors"} <= files
    assert "model.safetensors" not in files
    card = (tmp_path / "README.md").read_text()
    assert "library_name: peft" in card
    assert "## Privacy" in card
    same_logits(model, PeftModel.from_pretrained(built("gpt2"), str(tmp_path)), text(3, "words"))


def losses_of(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    return F.cross_entropy(outputs["logits"], labels, reduction="none", label_smoothing=0.1)


def test_a_loss_of_the_user_is_one_for_each_record(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "losses", compute_loss_func=losses_of, max_steps=2)
    assert trainer.train().global_step == 2
    mean = trainer_of(
        tmp_path / "mean",
        compute_loss_func=lambda outputs, labels, **_: losses_of(outputs, labels).mean(),
    )
    with pytest.raises(UnsupportedModelError, match="one loss for each record"):
        mean.train()
    assert [run.charged for run in mean.ledger.runs().values()] == [0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("train_sampling_strategy", "group_by_length"),
        ("dataloader_drop_last", True),
        ("label_smoothing_factor", 0.1),
        ("auto_find_batch_size", True),
        ("bf16", True),
        ("activation_checkpointing", True),
        ("torch_compile", True),
        ("neftune_noise_alpha", 5.0),
        ("debug", "underflow_overflow"),
        ("include_num_input_tokens_seen", True),
        ("max_grad_norm", 0.0),
    ],
)
def test_arguments_that_would_break_the_account_are_refused_by_name(
    name: str, value: Any, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name}="):
        trainer_of(tmp_path / "run", **{name: value})
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [("fp16", True), ("deepspeed", "ds.json"), ("fsdp", "full_shard"), ("n_gpu", 2)],
)
def test_arguments_of_other_machines_are_refused_by_name(name: str, value: Any) -> None:
    from steppe.integrations.training_arguments import check_arguments

    with pytest.raises(ConfigurationError, match=f"^{name}="):
        check_arguments(SimpleNamespace(**{name: value}))


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"epsilon": 1.0, "delta": 1e-3, "batch_size": 4}, "is decided by TrainingArguments"),
        ({"epsilon": 1.0, "delta": 1e-3, "epoch": 4}, "is no field of steppe.Plan"),
        (3.0, "must be a dict of fields"),
        ({"delta": 1e-3}, "epsilon"),
        (
            {
                "epsilon": 1.0,
                "delta": 1e-3,
                "noise": steppe.BLT(2),
                "sampling": steppe.FixedOrder(2),
                "adjacency": "zero-out",
            },
            r"^plan\['noise'\]=BLT\(.*every checkpoint folder of transformers, .* contain it",
        ),
    ],
)
def test_wrong_plans_are_refused(plan: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        trainer_of(tmp_path, plan=plan)


def test_scores_on_the_private_records_are_refused(tmp_path: Path) -> None:
    data = numbers()
    with pytest.raises(ConfigurationError, match="are the private records"):
        trainer_of(tmp_path, train_dataset=data, eval_dataset={"seen": data})


def test_a_mean_over_the_batch_and_a_search_are_refused(tmp_path: Path) -> None:
    class Mean(PrivateTrainer):
        def compute_loss(self, model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
            return model(**inputs)["loss"]

    with pytest.raises(ConfigurationError, match="override record_losses"):
        trainer_of(tmp_path, kind=Mean)
    with pytest.raises(MisuseError, match="would train many times"):
        trainer_of(tmp_path).hyperparameter_search()


def test_padding_to_the_longest_of_a_batch_is_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"[PAD]": 0, "a": 1}, unk_token="a"))  # noqa: S106 - no password
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")  # noqa: S106
    ragged = [{"input_ids": [1] * (2 + row % 4), "labels": row % 3} for row in range(12)]
    options: dict[str, Any] = {"model": built("bert"), "train_dataset": ragged}
    with pytest.raises(DataError, match="pad"):
        trainer_of(tmp_path, data_collator=DataCollatorWithPadding(tokenizer), **options)
    fixed = DataCollatorWithPadding(tokenizer, padding="max_length", max_length=7)
    assert trainer_of(tmp_path, data_collator=fixed, **options).plan.total_steps == 10
