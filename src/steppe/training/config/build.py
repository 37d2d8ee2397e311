"""From the tables of a configuration to the objects of a run."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from steppe.averaging import EMA, OMV, OPA, Average, Keep
from steppe.finetuning import parameter_groups
from steppe.ledger import Ledger
from steppe.models import trained_part
from steppe.plan import Plan
from steppe.probing import KINDS
from steppe.records import as_records
from steppe.training import publishing, recipes
from steppe.training.config import registry
from steppe.training.config.data import load_data
from steppe.training.config.front_end import features
from steppe.training.config.keys import CALLED, COUNTS, KEPT_KEYS, TABLES
from steppe.training.config.model import make_model
from steppe.training.config.plan import settle
from steppe.training.groups import Saving
from steppe.training.intervals import within_plan
from steppe.training.losses import curvature, loss_of, why_no_outputs
from steppe.training.run_averages import (
    Keepable,
    OutputAverage,
    RunAverages,
    Snapshots,
    stored_steps,
)
from steppe.utils import validation

# Arguments of schedulers that mean the length of the run.
_LENGTHS = ("T_max", "total_iters", "total_steps")
# Defaults: the number of stored checkpoints, and how many of them an average of outputs uses.
_STORED, _TOGETHER = 50, 20


class BuiltConfig:
    """The parts of a run.

    Args:
        tables: the configuration, checked by `check`.

    Attributes:
        loaded: the records as they were loaded.
        model: the whole model.
        trained: the trained part: the model, or its head on features computed once.
        plan: the plan.
        known_plan: the plan with its population, so that its length is known.
        resolved: the configuration with every choice made.
        reasons: the reason for each constant that was chosen by rule, by name.
    """

    def __init__(self, tables: Mapping[str, Mapping[str, Any]]) -> None:
        self.resolved = {
            name: dict(tables.get(name, {}))
            for name in TABLES
            if name in tables or name not in ("scheduler", "averages")
        }
        self.reasons: dict[str, str] = {}
        self._train = self.resolved["train"]
        if "ledger" in self._train:
            self._train["ledger"] = _whole_ledger(self._train["ledger"])
        self.loaded = load_data(self.resolved["data"], self.reasons, loss_of(self._train))
        seed = self._train.get("seed")
        self.model = make_model(self.resolved["model"], self.loaded, seed, self.reasons)
        self.trained = trained_part(self.model)
        self.plan = settle(
            self.resolved["plan"],
            self.resolved["optimizer"],
            records=len(self.loaded.train),
            published=self.loaded.published,
            weights=sum(w.numel() for w in self.trained.parameters() if w.requires_grad),
            front_end=recipes.front_end_of(self.model),
            columns=self.loaded.columns,
            curvature=curvature(loss_of(self._train), self.trained, as_records(self.loaded.train)),
            reasons=self.reasons,
        )
        self.known_plan = self._known_plan()
        self.optimizer = self._make_optimizer()
        self.scheduler = self._make_scheduler()
        self.averages = self._make_averages()
        self._require_keepable()

    @cached_property
    def data(self) -> Any:
        """The private records as the steps use them. Fixed features are computed here, once."""
        return self._features(self.loaded.train, prove=self.isolation != "probed")

    @cached_property
    def options(self) -> dict[str, Any]:
        """Further arguments of the trainer, by their names; `into_groups` groups them."""
        return {
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "averages": self.averages,
            "publish": self._train["publish"],
            "evaluate": self._features(self.loaded.evaluate),
            "public": self._features(self.loaded.public, as_batch=True),
            "groups": self.loaded.groups,
            "classes": self.loaded.classes,
            "also_read": self.loaded.also_read,
            "held_out": self.loaded.held_out,
            "columns": self.loaded.inputs if self.trained is self.model else (),
            "checks": self.loaded.checks,
            "data_name": self.loaded.name,
            "loss": loss_of(self._train),
            "isolation": self.isolation,
            "keep": self._keep,
            "ledger": self._ledger,
            "progress": self._train.get("progress", True),
            "ceiling": self._train.get("ceiling", False),
            **{key: self._train[key] for key in COUNTS if key in self._train},
        }

    @property
    def _ledger(self) -> Ledger | None:
        """The ledger that several runs share; a new one gets the budget, at the plan's δ."""
        if "ledger" not in self._train:
            return None
        ledger = Ledger(self._train["ledger"])
        if "ledger_epsilon" not in self._train:
            return ledger
        budget = ledger.budget or {"delta": self.known_plan.delta}
        epsilon = self._train["ledger_epsilon"]
        return Ledger(ledger.path, epsilon=epsilon, delta=budget["delta"])

    @property
    def isolation(self) -> str:
        """How isolation is ensured."""
        return str(self._train.get("isolation", KINDS[0]))

    @validation.called(CALLED)
    def _known_plan(self) -> Plan:
        plan = self.plan
        return plan if plan.population else plan.for_population(len(self.loaded.train))

    @property
    def _keep(self) -> Keep | None:
        if "keep" not in self._train:
            return None
        with validation.called(registry.keys_of("train.keep", KEPT_KEYS)):
            return Keep(**self._train["keep"])

    @property
    def _no_outputs(self) -> str | None:
        """Why a run has no averages of outputs, such as a regression."""
        return why_no_outputs(loss_of(self._train), as_records(self.loaded.train))

    def _features(self, pairs: Any, as_batch: bool = False, prove: bool = False) -> Any:
        progress = bool(self._train.get("progress", True))
        return features(self.model, pairs, progress, self.loaded.cache, as_batch, prove)

    def _make_optimizer(self) -> Optimizer:
        name, options = registry.name_and_options("optimizer", self.resolved["optimizer"])
        known, fixed = registry.optimizers(), {}
        if name == "DPAdam":
            known, fixed = {name: known[name].for_plan}, {"plan": self.known_plan}
        trained: Any = [weight for weight in self.trained.parameters() if weight.requires_grad]
        if (groups := options.pop("groups", None)) is not None:
            trained = self._groups(groups)
        made: Optimizer = registry.build("optimizer", known, name, options, params=trained, **fixed)
        return made

    def _groups(self, given: Any) -> Any:
        """The trained weights with options of their own, by the names in the trained part."""
        if not isinstance(given, Mapping):
            rule = "must be a table of tables"
            raise validation.fail("optimizer.groups", given, rule, "write [optimizer.groups.head]")
        with validation.called({"groups": "optimizer.groups"}):
            return parameter_groups(self.trained, given)

    def _make_scheduler(self) -> Any:
        table = self.resolved.get("scheduler")
        if not table:
            return None
        name, options = registry.name_and_options("scheduler", table)
        known = registry.schedulers()
        wanted = inspect.signature(known[name]).parameters if name in known else ()
        for key in _LENGTHS:
            if key in wanted and key not in options:
                table[key] = options[key] = self.known_plan.total_steps
        return registry.build("scheduler", known, name, options, optimizer=self.optimizer)

    def _make_averages(self) -> list[Keepable]:
        if "averages" not in self.resolved:
            return self._chosen_averages()
        made = []
        for name, given in self.resolved["averages"].items():
            for options in given if isinstance(given, list) else [given]:
                if not isinstance(options, Mapping):
                    rule = "must be a table, or an array of tables"
                    raise validation.fail(f"averages.{name}", options, rule, f"{name} = {{ … }}")
                made.append(self._average(name, dict(options)))
        if not all(isinstance(average, Average) for average in made):
            self._train.setdefault("store_every", max(1, self.known_plan.total_steps // _STORED))
        return made

    @validation.called(CALLED)
    def _require_keepable(self) -> None:
        """Check the averages as the trainer does, and complete the name of the published model.

        `steppe plan` makes no trainer.
        """
        steps = self.known_plan.total_steps
        saving = Saving(store_every=self._train.get("store_every"), keep=self._keep)
        stored = stored_steps(within_plan(saving.store_every, steps), steps, saving.keep)
        kept = RunAverages(self.trained, self.averages, steps, stored, self._no_outputs)
        self._train["publish"] = publishing.find(self._train.get("publish"), kept.of_weights)

    def _average(self, name: str, options: dict[str, Any]) -> Keepable:
        where, known = f"averages.{name}", registry.averages()
        if name in ("OPA", "OMV"):
            registry.check_keys(where, options, ("k",))
            if "k" not in options:
                raise validation.missing(f"{where}.k", "add k = 20", f"is needed by {name}")
            with validation.called(registry.keys_of(where, ("k",))):
                return OutputAverage(known[name], options["k"])
        if name == "PowerAverages":
            made_later: Snapshots = registry.build(where, {name: Snapshots}, name, options)
            return made_later
        if name == "SWA" and isinstance(options.get("warmup"), float):
            options.setdefault("steps", self.known_plan.total_steps)
        made: Average = registry.build(where, known, name, options, model=self.trained)
        return made

    def _chosen_averages(self) -> list[Keepable]:
        steps = self.known_plan.total_steps
        every = self._train.setdefault("store_every", max(1, steps // _STORED))
        self.reasons["averages"] = recipes.FREE
        if "publish" not in self._train:
            self._train["publish"] = recipes.publishes(self.model)
            self.reasons["publish"] = recipes.BEFOREHAND
        chosen: list[Keepable] = [*recipes.averages(self.trained, steps)]
        stored = stored_steps(every, steps, self._keep)
        if stored and self._no_outputs is None:
            k = min(_TOGETHER, len(stored))
            chosen += [OutputAverage(OPA, k), OutputAverage(OMV, k)]
        self.resolved["averages"] = dict(map(_name_and_table, chosen))
        return chosen


@validation.called(CALLED)
def _whole_ledger(given: str) -> str:
    """The absolute path, so that a run can be resumed from another folder. Checks the file."""
    ledger = Ledger(Path(given).expanduser() if given else given)
    ledger.runs()
    return str(ledger.path.resolve())


def _name_and_table(average: Keepable) -> tuple[str, dict[str, Any]]:
    """An average by its name and options in a configuration file."""
    if isinstance(average, Snapshots):
        return "PowerAverages", {"every": average.every, "gammas": list(average.gammas)}
    if isinstance(average, OutputAverage):
        return average.kind.__name__, {"k": average.k}
    options: dict[str, Any] = average.settings()
    if isinstance(average, EMA):
        options["warmup"] = bool(options["warmup"])
    return type(average).__name__, options
