"""The `PrivacyEngine` of Opacus, on this library's engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from steppe.clipping import Flat
from steppe.compat.accountant import Accountant
from steppe.compat.arguments import RecordAxis
from steppe.compat.bounds import ADAPTIVE, Bounds, bounds_of
from steppe.compat.budget import Budget
from steppe.compat.checkpoints import Checkpoints
from steppe.compat.compatibility import Compatibility
from steppe.compat.constants import Constants
from steppe.compat.hooked_run import HookedRun
from steppe.compat.keywords import check_isolation, check_options, refuse_unknown
from steppe.compat.loader import Draws, PoissonLoader
from steppe.compat.loop_isolation.watched import LoopReport
from steppe.compat.noise_multiplier import TARGETS, get_noise_multiplier
from steppe.compat.padding import Lengths, Values, padded
from steppe.compat.uncopied_hook import Hook
from steppe.errors import MisuseError
from steppe.plan import Plan
from steppe.private import require_one_process
from steppe.private import trained_parameters as trained_weights
from steppe.probing import require_uncompiled
from steppe.utils import validation


class PrivacyEngine(Checkpoints, Compatibility):
    """Makes a plain loop private, with the interface of Opacus.

    Three things differ. `make_private` returns your own module and optimizer, so state dicts,
    schedulers and type checks work as before. `.grad` is empty until `step()` and contains the
    private gradient after it. Misuse that would void the guarantee is an error until the run is
    ended by `detach()` or at the end of a `with PrivacyEngine() as engine:` block.

    Args:
        accountant: "prv" (or "pld") for the tight account, "rdp" for the looser second opinion.
        secure_mode: accepted; noise and sampling always come from a cryptographic stream.

    Guarantees:
        A step releases (sum of the per-example gradients clipped to C, plus noise of std σC)
        divided by the batch size of the loader, a constant. Sampling, noise and account use the
        same rate, batch size / number of records. The number of records is read from the data set
        and treated as public. It is proven that a record's gradient depends on that record alone:
        from the operations of the module before its first step, and from those of the loop on its
        first two batches and whenever its operations change. Row i of the module's inputs must be
        made from record i alone, which excludes mixup and batch statistics. The loss must end in a
        mean or sum of terms that each depend on one record. It is not proven that the loop makes no
        decision by values of earlier batches.

    Examples:
        >>> import torch
        >>> data = torch.utils.data.TensorDataset(torch.randn(60, 4), torch.randint(2, (60,)))
        >>> loader = DataLoader(data, batch_size=20)
        >>> model = nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> engine = PrivacyEngine()
        >>> model, optimizer, loader = engine.make_private(
        ...     module=model,
        ...     optimizer=optimizer,
        ...     data_loader=loader,
        ...     noise_multiplier=1.1,
        ...     max_grad_norm=1.0,
        ... )
        >>> for x, y in loader:
        ...     optimizer.zero_grad()
        ...     loss = nn.functional.cross_entropy(model(x), y)
        ...     loss.backward()
        ...     optimizer.step()
        >>> round(engine.get_epsilon(delta=1e-3), 1)
        2.4
    """

    def __init__(
        self, *, accountant: str = "prv", secure_mode: bool = False, **unknown: Any
    ) -> None:
        refuse_unknown(PrivacyEngine.__init__, unknown, ())
        del secure_mode
        self._accountant = Accountant(accountant)
        self._runs: list[HookedRun] = []

    @property
    def accountant(self) -> Accountant:
        """Counts the steps of all runs of this engine. It cannot be replaced."""
        return self._accountant

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        data_loader: DataLoader[Any],
        noise_multiplier: float,
        max_grad_norm: float | list[float],
        batch_first: bool = True,
        loss_reduction: str = "mean",
        poisson_sampling: bool = True,
        clipping: str = "flat",
        noise_generator: None = None,
        grad_sample_mode: str = "hooks",
        criterion: Callable[..., Any] | None = None,
        wrap_model: bool = True,
        isolation: str = "proven",
        pad_to: Lengths | None = None,
        pad_value: Values | None = None,
        **further: Any,
    ) -> tuple[Any, ...]:
        """Make a loop private with a given amount of noise.

        Args:
            module: any module that processes every record independently.
            optimizer: over exactly the module's trainable weights.
            data_loader: its data set, batch size, collate function and workers are kept; its order
                is replaced by Poisson sampling.
            noise_multiplier: σ, the noise on the sum in units of `max_grad_norm`.
            max_grad_norm: C, the largest norm of one record's gradient; with
                `clipping="per_layer"` a list, one for each trained weight in the optimizer's order.
            batch_first: False if the module expects records on the second axis.
            loss_reduction: "mean" or "sum": how the loss of the loop combines the batch.
            poisson_sampling: only True.
            clipping: "flat"; "per_layer": each weight's part of a per-example gradient is clipped
                to its own norm, and the sensitivity is the root of the sum of squares; "adaptive":
                the norm starts at `max_grad_norm` and follows a quantile, see `steppe.Quantile`.
            noise_generator: only None.
            grad_sample_mode: all modes give the same gradients, and the fastest way is found for
                each layer. "ghost" only changes what is returned, as in Opacus.
            criterion: the loss of a loop written for ghost clipping; returned as it is.
            wrap_model: accepted; the module is never wrapped.
            isolation: how it is known that a record's gradient depends on that record alone.
                "proven": from the operations of module and loop; what cannot be proven is rejected.
                "probed": by trying values on the module; the loop is not checked.
            pad_to: the length to which every batch is padded on axis 1, for collate functions that
                pad to the longest record; for all tensors that have such an axis, or by key.
            pad_value: the padding value, for all tensors or by key (0, or -100 for labels).
            further: for "adaptive": `target_unclipped_quantile`, `clipbound_learning_rate`,
                `min_clipbound`, `max_clipbound` and `unclipped_num_std`, the noise on the number of
                unclipped records.

        Returns:
            The same module, the same optimizer, and a loader with the same number of batches; with
            `grad_sample_mode="ghost"` the criterion comes before the loader.
        """
        adaptive = refuse_unknown(self.make_private, further, ADAPTIVE)
        del wrap_model
        check_options(poisson_sampling, clipping, noise_generator, grad_sample_mode)
        check_isolation(isolation)
        draws = Draws(padded(data_loader, pad_to, pad_value))
        hint = "without noise nothing is private; a common range is 0.5 to 5"
        sigma = validation.positive("noise_multiplier", noise_multiplier, hint)
        bounds = bounds_of(clipping, max_grad_norm, adaptive)
        constants = _constants(draws, sigma, bounds, loss_reduction, None)
        made = self._start(module, optimizer, draws, constants, batch_first, isolation)
        return _as_mode_returns(grad_sample_mode, criterion, *made)

    def make_private_with_epsilon(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        data_loader: DataLoader[Any],
        target_epsilon: float,
        target_delta: float,
        epochs: int,
        max_grad_norm: float | list[float],
        batch_first: bool = True,
        loss_reduction: str = "mean",
        poisson_sampling: bool = True,
        clipping: str = "flat",
        noise_generator: None = None,
        grad_sample_mode: str = "hooks",
        criterion: Callable[..., Any] | None = None,
        wrap_model: bool = True,
        isolation: str = "proven",
        pad_to: Lengths | None = None,
        pad_value: Values | None = None,
        epsilon_tolerance: float = 0.01,
        **further: Any,
    ) -> tuple[Any, ...]:
        """Make a loop private with the noise that a budget needs.

        Args:
            target_epsilon: the budget.
            target_delta: δ, well below 1 over the number of records.
            epochs: passes over the loader that the budget must allow.
            module, optimizer, data_loader, max_grad_norm, batch_first, loss_reduction,
            poisson_sampling, clipping, noise_generator, grad_sample_mode, criterion, wrap_model,
            isolation, pad_to, pad_value, further: as for `make_private`.
            epsilon_tolerance: accepted; the noise is as little as the budget allows.

        Returns:
            As `make_private`.

        Guarantees:
            All batches of `epochs` passes together cost at most `target_epsilon` at
            `target_delta`. The next batch after them raises `BudgetExhausted`. Steps of other runs
            count too, also those of a history that is given to the accountant later: no batch is
            yielded whose step would exceed the target.
        """
        adaptive = refuse_unknown(self.make_private_with_epsilon, further, ADAPTIVE)
        del wrap_model
        validation.positive("epsilon_tolerance", epsilon_tolerance)
        check_options(poisson_sampling, clipping, noise_generator, grad_sample_mode)
        check_isolation(isolation)
        if len(self.accountant) or self._runs:
            raise validation.fail(
                "accountant",
                f"{len(self.accountant)} steps",
                "must be new, because the noise is calibrated for one run alone",
                "use a new PrivacyEngine; to resume a run, set accountant.history afterwards",
            )
        draws = Draws(padded(data_loader, pad_to, pad_value))
        bounds = bounds_of(clipping, max_grad_norm, adaptive)
        steps = validation.positive_integer("epochs", epochs) * draws.pass_length
        with validation.called(TARGETS):
            plan = Plan(
                epsilon=target_epsilon,
                delta=target_delta,
                batch_size=draws.batch_size,
                steps=steps,
                clip=Flat(bounds.total),
            ).for_population(len(draws.rows))
        sigma = get_noise_multiplier(
            target_epsilon=target_epsilon,
            target_delta=target_delta,
            sample_rate=plan.rate,
            steps=plan.total_steps,
            accountant=self.accountant.mechanism(),
        )
        budget = Budget(target_epsilon, target_delta, sigma, draws.sample_rate, plan.total_steps)
        constants = _constants(draws, sigma, bounds, loss_reduction, budget)
        made = self._start(module, optimizer, draws, constants, batch_first, isolation)
        return _as_mode_returns(grad_sample_mode, criterion, *made)

    def get_epsilon(self, delta: float) -> float:
        """The ε that all steps so far cost at δ."""
        return self.accountant.get_epsilon(delta)

    @property
    def isolation(self) -> list[LoopReport]:
        """How isolation is known, one printable report per run of this engine."""
        return [run.watched.report for run in self._runs]

    def detach(self) -> None:
        """End all runs of this engine: remove every hook and attribute.

        The loaders that were returned yield no more batches. Steps that were counted stay counted,
        and `make_private` may be called again.

        Guarantees:
            Later steps are plain ones. Taken on the private data, they void the guarantee.
        """
        for run in self._runs:
            run.detach()

    def __enter__(self) -> PrivacyEngine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.detach()

    def _start(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        draws: Draws,
        constants: Constants,
        batch_first: bool,
        isolation: str,
    ) -> tuple[nn.Module, Optimizer, PoissonLoader]:
        require_one_process(module)
        require_uncompiled(module)
        if any(isinstance(hook, Hook) for hook in module._forward_pre_hooks.values()):
            raise MisuseError(
                f"module={type(module).__name__}: was made private before; build a new module and "
                "optimizer for another run, continue with the objects that were returned, or end "
                "that run with detach() of its engine."
            )
        parameters = trained_weights(module, optimizer)
        axis = RecordAxis(batch_first)
        run = HookedRun(module, optimizer, parameters, constants, axis, self.accountant, isolation)
        self._runs.append(run)
        return module, optimizer, PoissonLoader(draws, run)


def _as_mode_returns(
    mode: str, criterion: Callable[..., Any] | None, module: Any, optimizer: Any, loader: Any
) -> tuple[Any, ...]:
    if mode == "ghost":
        return module, optimizer, criterion or nn.CrossEntropyLoss(), loader
    if criterion is not None:
        raise validation.fail(
            "criterion",
            type(criterion).__name__,
            "must be left out unless grad_sample_mode='ghost'",
            "call your loss in the loop",
        )
    return module, optimizer, loader


def _constants(
    draws: Draws,
    noise_multiplier: float,
    bounds: Bounds,
    loss_reduction: str,
    budget: Budget | None,
) -> Constants:
    return Constants(
        noise_multiplier=noise_multiplier,
        bounds=bounds,
        expected_batch_size=draws.batch_size,
        sample_rate=draws.sample_rate,
        averaged=validation.one_of("loss_reduction", loss_reduction, ("mean", "sum")) == "mean",
        budget=budget,
    )
