"""Normalized STORM as a PyTorch optimizer.

    m_1 = g_K(x_1),   or with start "zero"   (1 - beta) g_K(x_1)
    m_t = beta m_{t-1} + (1 - beta) g_K(x_t) + c beta (g_k(x_t) - g_k(x_{t-1}))     same samples, same random numbers
    n_t = m_t,   or with nesterov   beta m_t + (1 - beta) g_K(x_t)
    x_{t+1} = (1 - lr weight_decay) x_t - lr scale u(n_t),   u(0) = 0

g_K is the mean over the K samples of a step, g_k over the first k of them, c the correction: 1 is the paper, 0 is
momentum in the geometry u. A step asks K + k sample gradients if c > 0, else K.

Order. If c > 0, weights sit at x_t between two steps and the move by m_t is due: the next step takes the gradient at
x_t on its own samples, moves, and takes it at x_{t+1}. No copy of the weights is kept. So the first step moves nothing,
and the learning rate that moves is the one at the time of the move. If c = 0, a step moves at once, as any other
optimizer's.

Memory, in copies of the parameters, gradients included. "fast": 3 (weights, m, gradients). "lean": 2 and the gradients
of one tensor or a few small ones, as they are folded into m during the backward pass and freed.

Source: the paper's Algorithm 1. The lazy order with hooks is ours.
Departures: weights of samples are applied to gradients after the backward pass, so that groups may differ in beta.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normstorm.theory import Plan

from .batches import Part, parts_of
from .curvature import passes_with_products, refuse_several_processes
from .estimates import READY, Estimates, Squares, drop_gradients
from .guards import canary, refuse_accumulation, unchanged, whole_batch
from .hooks import Action, folding
from .norms import Norms
from .one_point import OnePointStep
from .options import ALLOWED, WHO, WIDE, check, check_group
from .replay import generators_of
from .sharding import squares
from .two_point import TwoPointStep

APART = (
    "gradients must not be changed inside a pass if correction > 0, since clipping the two apart breaks their "
    "difference; got changed ones: leave gradient clipping off, or take correction=0"
)
LEAN = "memory must be 'fast' where a closure changes gradients, as by clipping, that 'lean' has freed; got 'lean'"


class NormalizedStorm(Optimizer):
    """Normalized STORM.

    params          as for every torch.optim.Optimizer
    lr              length of a step, in the norm of the geometry
    beta            in [0, 1): weight of the past
    geometry        euclidean (the paper), tensor, rms, sign, row, column, spectral, adam: see `directions`
    correction      in [0, 1]: weight of the difference on the same samples; 1 is the paper, 0 needs one pass
    weight_decay    decoupled
    nesterov        look ahead by the fresh gradient; with two points it costs one more copy of the parameters
    scale           factor of the step length, for groups that share a learning rate
    start           first: m_1 = g_K(x_1), the paper; zero: m_1 = (1 - beta) g_K(x_1), so that the first gradient
                    counts no more than others
    difference      exact (two gradients); hvp (a Hessian-vector product in place of their difference, no cancellation;
                    `step(loss, batch=...)` only); stale (the gradient of the step before on its own samples: one
                    pass and no variance reduction, exactly quasi-hyperbolic momentum c g + (1 - c) m)
    memory          fast or lean
    maximize        ascend
    beta2           in [0, 1): weight of the past in averages of squares, of the geometry adam and of neurons
    spectral_dtype  of the Newton-Schulz iteration; None: bfloat16 on CUDA, the parameter's elsewhere
    blocks          of the geometry spectral: matrices that the first axis of a tensor holds, 3 for fused q, k, v; E for
                    experts (E, ...)
    transposed      of the geometry spectral: matrices are inputs x outputs, as in x @ W
    neurons         of the geometry spectral: rows are evened out by their average squares
    fused           None: Triton kernels where they can serve and there is enough to do; True, False
    module          whose running statistics are frozen at the old point; None: every layer called meanwhile, which
                    compiled code hides: give the module with `module.compile()` or a compiled loss

    norms           keep the lengths of each step's gradient and estimate in `last_norms`, for loggers
    skip_nonfinite  leave out a step whose gradients are not finite, and count it in `skipped`; memory "fast"

    All but memory, fused, module, norms and skip_nonfinite may differ from group to group. A scheduler that cycles
    momentum (OneCycleLR, CyclicLR) writes it into the groups, where it takes the place of beta.

    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = NormalizedStorm(model.parameters(), lr=1e-2)
    >>> x, y = torch.ones(8, 3), torch.ones(8, 1)
    >>> def loss(x, y):
    ...     return torch.nn.functional.mse_loss(model(x), y)
    >>> _ = optimizer.step(loss, batch=(x, y), k=4)
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        beta: float = 0.9,
        *,
        geometry: str = "euclidean",
        correction: float = 1.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        scale: float = 1.0,
        start: str = "first",
        difference: str = "exact",
        memory: str = "fast",
        maximize: bool = False,
        beta2: float = 0.95,
        spectral_dtype: torch.dtype | None = None,
        blocks: int = 1,
        transposed: bool = False,
        neurons: bool = False,
        fused: bool | None = None,
        module: nn.Module | None = None,
        norms: bool = False,
        skip_nonfinite: bool = False,
    ) -> None:
        wide = {"memory": memory, "fused": fused, "module": module, "norms": norms, "skip_nonfinite": skip_nonfinite}
        options = {
            "lr": lr,
            "beta": beta,
            "geometry": geometry,
            "correction": correction,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "scale": scale,
            "start": start,
            "difference": difference,
            "maximize": maximize,
            "beta2": beta2,
            "spectral_dtype": spectral_dtype,
            "blocks": blocks,
            "transposed": transposed,
            "neurons": neurons,
        }
        for name, value in (wide | options).items():
            check(name, value)
        if skip_nonfinite and memory == "lean":
            raise ValueError(
                f"{WHO}: memory must be 'fast' with skip_nonfinite, which looks before it takes; got 'lean'"
            )
        self.memory, self.fused, self.module = memory, fused, module
        self.norms, self.skip_nonfinite, self.skipped = norms, skip_nonfinite, 0
        self.last_norms: dict[str, Tensor] = {}
        self._under_way: TwoPointStep | None = None  # the step between two points that is under way
        self._squares: Squares | None = None  # of estimates, if they came with the last update
        super().__init__(params, options | {"momentum": None})

    @classmethod
    def from_plan(cls, params: Any, plan: Plan, **options: Any) -> NormalizedStorm:
        """With the plan's beta and step size; its K and k belong to `step(loss, batch=..., k=plan.sub_batch)`."""
        if not isinstance(plan, Plan):
            raise ValueError(f"{WHO}.from_plan: plan must be a normstorm Plan; got {type(plan).__name__}")
        return cls(params, lr=plan.eta, beta=plan.beta, **options)

    # Entrances.

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # fused already, and compiled anew for every rate
    @torch.no_grad()
    def step(
        self,
        closure: Callable[..., Any] | None = None,
        *,
        batch: Any = None,
        k: int | None = None,
        backwards: int = 1,
    ) -> Any:
        """One step, in one of three ways.

        step(closure)               the closure evaluates the model on one batch, calls backward, and returns the loss;
                                    it is called at both points. `backwards`: how often it calls backward.
        step(loss, batch=..., k=)   loss(*batch) returns the mean loss of the samples; the first k of them are
                                    evaluated at both points (None: all)
        step()                      after `old_point` and `new_point`; or after backward, if correction = 0

        Returns the loss at the new point.
        """
        check("backwards", backwards)
        if batch is not None or k is not None:
            return self._step_on_batch(closure, batch, k)
        if closure is not None:
            self._refuse_inside("step(closure)")
            refuse_accumulation(backwards)
            self._prepare()
            if not self.two_points:
                return self._step_at_one_point(closure, backwards)
            checked = whole_batch(closure, self._estimates.params)
            return self._step_in_passes(checked, None, backwards, generators=self._generators(closure))
        return self._finish(self._under_way) if self._under_way is not None else self._step_from_gradients()

    def _step_on_batch(self, loss: Callable[..., Any] | None, batch: Any, k: int | None) -> Any:
        self._refuse_inside("step(loss, batch=...)")
        self._prepare()
        head, rest, share = parts_of(loss, batch, k, self.two_points)
        if not self.two_points:
            drop_gradients(self._estimates.params)
            return self._step_at_one_point(head.backward, 1)
        if self.param_groups[0]["difference"] == "hvp":
            return self._step_with_products(head, rest, share)
        generators = self._generators(loss)
        return self._step_in_passes(head.backward, rest.backward if rest else None, 1, share, generators)

    def _generators(self, function: Any) -> list[Any]:
        return generators_of(function, self.module) if self._estimates.any_due else []

    def _step_in_passes(
        self,
        head: Callable[[], Any],
        rest: Callable[[], Any] | None,
        backwards: int,
        share: float = 1.0,
        generators: Sequence[Any] = (),
    ) -> Any:
        self._refuse_hvp()
        if self._estimates.any_due:
            with self._pass("old", backwards, generators=generators):
                head()
        with self._pass("new", backwards, share):
            loss = head()
        if rest is not None:
            with self._pass("rest", backwards):
                remaining = rest()
            loss = share * loss + (1 - share) * remaining
        self._finish(self._under_way)
        return loss

    def _step_with_products(self, head: Part, rest: Part | None, share: float) -> Tensor:
        refuse_several_processes()
        step = self._under_way = self._two_point_step(paired=False)
        with self._given_up_on_failure(step):
            loss = passes_with_products(step, head, rest, share, self.module)
        self._finish(step)
        return loss

    def _step_at_one_point(self, closure: Callable[[], Any], backwards: int) -> Any:
        step = self._one_point_step()
        held = canary(self._estimates.params) if self.memory == "lean" else None

        def watched() -> Any:
            with unchanged(held, LEAN):
                return closure()

        loss = step.run(watched, lambda action: self._folding(action, backwards))
        self._end(step)
        return loss

    def _one_point_step(self, factor: float = 1.0) -> OnePointStep:
        return OnePointStep(self._estimates, factor, skip=self.skip_nonfinite, norms=Norms() if self.norms else None)

    def _two_point_step(self, **kind: bool) -> TwoPointStep:
        norms = Norms() if self.norms else None
        return TwoPointStep(self._estimates, self._squares, skip=self.skip_nonfinite, norms=norms, **kind)

    def _end(self, step: OnePointStep | TwoPointStep) -> None:
        """What is told of a step that has ended."""
        if step.skipped:
            self.skipped += 1
        if step.norms is not None:
            momenta = [state["momentum"] for state in self.state.values() if "momentum" in state]
            found = {"gradient": step.norms.gradient(), "estimate": squares(momenta).sum().sqrt() if momenta else None}
            self.last_norms = {name: value for name, value in found.items() if value is not None}

    def _step_from_gradients(self) -> None:
        self._prepare()
        if self.two_points:
            raise RuntimeError(
                f"{WHO}: step() needs gradients at two points if correction > 0: give it a closure or a batch, or use "
                "old_point and new_point, as always with a GradScaler (also Lightning's 16-mixed); correction=0 takes "
                "the gradients of one backward"
            )
        factor = self._unscaling()
        if factor is not None:
            step = self._one_point_step(factor)
            step.take_all()
            step.finish()
            self._end(step)

    def _refuse_hvp(self) -> None:
        if self.param_groups[0]["difference"] == "hvp":
            raise ValueError(
                f"{WHO}: difference='hvp' must be used through step(loss, batch=...); got another entrance"
            )

    @contextmanager
    def old_point(self, *, scaler: Any = None, backwards: int = 1) -> Iterator[None]:
        """The first pass of a step: call backward on the step's samples (or the first k of them) inside.

        Give the GradScaler, if the loss is scaled. Weights move to the new point during the pass or when it ends.
        """
        self._refuse_inside("old_point")
        self._prepare()
        self._refuse_one_point("old_point")
        if scaler is not None and not hasattr(scaler, "is_enabled"):
            raise ValueError(f"{WHO}: scaler must be None or a GradScaler; got {type(scaler).__name__}")
        scaled = scaler is not None and scaler.is_enabled()
        if scaled and any(group["nesterov"] for group in self.param_groups):
            raise ValueError(
                f"{WHO}: nesterov must be False for two points with an enabled GradScaler; got nesterov=True"
            )
        with self._pass("old", backwards, scaled=scaled):
            yield

    @contextmanager
    def new_point(self, *, share: float = 1.0, backwards: int = 1) -> Iterator[None]:
        """The second pass, on the same samples. `share`: k / K if the other K - k follow in `rest`."""
        check("share", share)
        if self._under_way is None:
            self._prepare()
            self._refuse_one_point("new_point")
            if self._estimates.any_due:
                raise RuntimeError(f"{WHO}: old_point must come before new_point")
        with self._pass("new", backwards, float(share)):
            yield

    @contextmanager
    def rest(self, *, backwards: int = 1) -> Iterator[None]:
        """The third pass if k < K: the samples that are evaluated at the new point alone."""
        if self._under_way is None:
            raise RuntimeError(f"{WHO}: new_point must come before rest")
        with self._pass("rest", backwards):
            yield

    @torch.no_grad()
    def abandon(self) -> None:
        """Give up a step between its passes, as an exception inside one of them does; else nothing happens.

        Weights stay where they are and averages start anew, unless nothing has happened to them yet or a GradScaler
        was given: then all is as before the step.
        """
        step = self._under_way
        if step is None:
            return
        if step.passes.inside is not None:
            raise RuntimeError(f"{WHO}: abandon must be called between passes; got it inside {step.passes.inside}")
        self._give_up(step)

    def _refuse_one_point(self, what: str) -> None:
        self._refuse_hvp()
        if not self.two_points:
            raise RuntimeError(
                f"{WHO}: {what} must not be used with correction = 0, beta = 0 or difference='stale', which need "
                "one pass; call backward and step()"
            )

    # Passes.

    @contextmanager
    def _pass(
        self, kind: str, backwards: int, share: float = 1.0, scaled: bool = False, generators: Sequence[Any] = ()
    ) -> Iterator[None]:
        check("backwards", backwards)
        step = self._under_way = self._under_way or self._two_point_step(scaled=scaled)
        step.passes.check_order(kind)
        around = step.passing(kind, share, lambda action: self._folding(action, backwards), self.module, generators)
        with self._given_up_on_failure(step), around, unchanged(canary(self._estimates.params), APART):
            yield

    @contextmanager
    def _given_up_on_failure(self, step: TwoPointStep) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with torch.no_grad():
                self._give_up(step)
            raise

    def _give_up(self, step: TwoPointStep) -> None:
        self._under_way = None
        self._squares = step.abandon()

    def _folding(self, action: Action, backwards: int) -> AbstractContextManager[None]:
        if self.memory != "lean":
            return nullcontext()
        held = canary(params := self._estimates.params)
        return folding([p for p in params if p is not held], action, backwards)

    def _finish(self, step: TwoPointStep | None) -> None:
        assert step is not None
        step.passes.check_complete()
        if not step.scaled and getattr(self, "found_inf", None) is not None:
            self._give_up(step)
            raise RuntimeError(f"{WHO}: a GradScaler must be given to old_point(scaler=...); got it at the step alone")
        factor = self._unscaling()
        if factor is None or step.skipped:
            self._give_up(step)
        else:
            self._under_way = None
            self._squares = step.finish(factor)
        self._end(step)

    @torch.no_grad()
    def finish(self) -> None:
        """Make the move that is due: after the last step of a run between two points, whose estimate would be unused.

        Nothing happens where no move is due. Training may go on; the next step is not corrected then.
        """
        self._refuse_inside("finish")
        self._prepare()
        due = list(self._estimates.due())
        TwoPointStep(self._estimates, self._squares).move_due()
        self._estimates.set_stage(due, READY)
        self._squares = None

    def _unscaling(self) -> float | None:
        """What gradients have to be multiplied with; None if a scaler found an overflow."""
        found, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if found is not None and float(found) > 0:
            return None
        return 1.0 if scale is None else 1 / float(scale)

    # Groups, state, checkpoints.

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether a GradScaler tells of an overflow, instead of leaving the step out: between two points it must."""
        return self._under_way is not None or self.two_points

    @property
    def two_points(self) -> bool:
        """Whether a step asks gradients at two points."""
        return self._estimates.two_points

    @property
    def _estimates(self) -> Estimates:
        return Estimates(self.param_groups, self.state, self.fused)

    def _prepare(self) -> None:
        """Options may have been changed by hand or by a scheduler since the last step."""
        kinds = {group["difference"] for group in self.param_groups}
        if len(kinds) > 1:
            raise ValueError(f"{WHO}: difference must be the same in all groups; got {', '.join(sorted(kinds))}")
        for group in self.param_groups:
            if group.get("momentum") is not None:  # a scheduler's word for it
                group["beta"] = group["momentum"]
            check_group(group)
        self._estimates.create()

    def _refuse_inside(self, what: str) -> None:
        if self._under_way is not None:
            raise RuntimeError(
                f"{WHO}: {what} must not be asked between the passes of a step; finish it with step() or give it up "
                "with abandon()"
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As ever; refused where .grad holds what an earlier pass of a scaled step left there."""
        if self._under_way is not None and self._under_way.scaled and self._under_way.passes.inside in ("new", "rest"):
            raise RuntimeError(f"{WHO}: zero_grad must not be called at the new point of a scaled step")
        super().zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self._refuse_inside("add_param_group")
        super().add_param_group(param_group)
        try:
            check_group(self.param_groups[-1])
        except ValueError:
            self.param_groups.pop()
            raise
        self._estimates.create()

    def __getstate__(self) -> dict[str, Any]:
        self._refuse_inside("pickle or copy")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in (*WIDE, "skipped", "last_norms")}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._under_way, self._squares = None, None

    def state_dict(self) -> dict[str, Any]:
        self._refuse_inside("state_dict")
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._refuse_inside("load_state_dict")
        before = self.state, self.param_groups
        super().load_state_dict(state_dict)
        try:
            for group in self.param_groups:
                self._check_options(group)
            self._estimates.check_loaded()
            self._estimates.create()
        except ValueError:
            self.__setstate__({"state": before[0], "param_groups": before[1]})
            raise
        self._squares = None

    def _check_options(self, group: dict[str, Any]) -> None:
        if missing := (self.defaults.keys() & ALLOWED.keys()) - group.keys():
            raise ValueError(
                f"{WHO}.load_state_dict: every group must have the options of {WHO}; got one without "
                f"{', '.join(sorted(missing))}"
            )
        check_group(group)
