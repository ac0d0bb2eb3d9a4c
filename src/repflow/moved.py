"""Old import paths, which work for one release: each gives the module's new home and a DeprecationWarning.

Names are below `repflow.`. A module that became a package says so in its `__init__` by `successor`.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Iterable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_TABLE = """
    axes core.axes
    catalogue core.catalogue
    errors core.errors
    hooks core.hooks
    intervals core.intervals
    readout core.readout
    results core.results
    seconds core.seconds
    trust core.trust
    verdict core.verdict
    visible core.visible
    checks metrics.checks
    ablation spec.ablation
    request spec.request
    scheme spec.scheme
    zoo spec.zoo
    tasks.length spec.length
    claims papers.claims
    paper_findings papers.findings
    paper_parts papers.flow_parts
    paper_probe_parts papers.probe_parts
    paper_reading papers.reading
    thresholds papers.thresholds
    mixers.triton_block mixers.triton.block
    mixers.triton_block_kernels mixers.triton.kernels.block
    mixers.triton_launch mixers.triton.launch
    mixers.triton_loss mixers.triton.loss
    mixers.triton_loss_kernels mixers.triton.kernels.loss
    mixers.triton_mamba2 mixers.triton.mamba2
    mixers.triton_math mixers.triton.kernels.math
    mixers.triton_s6 mixers.triton.s6
    mixers.triton_s6_gradient mixers.triton.kernels.s6
    mixers.triton_s6_kernels mixers.triton.kernels.s6
    mixers.triton_ssd mixers.triton.ssd
    mixers.triton_ssd_backward mixers.triton.ssd
    mixers.triton_ssd_gradient mixers.triton.kernels.ssd
    mixers.triton_ssd_kernels mixers.triton.kernels.ssd
    mixers.triton_token_kernels mixers.triton.kernels.token
    mixers.chunked mixers.scan.chunked
    mixers.chunked_s6 mixers.scan.s6
    mixers.chunked_ssd mixers.scan.ssd
    mixers.carry mixers.scan.carry
    mixers.nonfinite_tokens mixers.scan.nonfinite
    mixers.precision mixers.scan.precision
    mixers.preference mixers.scan.preference
    mixers.token mixers.scan.token
    mixers.channel_mixing mixers.parts.channel_mixing
    mixers.convolution mixers.parts.convolution
    mixers.head_norm mixers.parts.head_norm
    mixers.matrix_state mixers.parts.matrix_state
    mixers.rotary mixers.parts.rotary
    mixers.shift mixers.parts.shift
    mixers.step mixers.parts.step
    models.recurrence_own models.recurrence.own
    models.recurrence_readers models.recurrence.readers
    models.scan_call models.fastpath.scan_call
    models.ssm_quantities models.recurrence.quantities
    models.memory models.fastpath.memory
    models.fastpath_gpu models.fastpath.gpu
    models.fastpath_layers models.fastpath.layers
    models.stack_block models.stack.block
    models.stack_cache models.stack.cache
    models.stack_config models.stack.config
    models.digest models.weights.digest
    models.block_sums models.weights.block_sums
    models.fingerprint models.identity.fingerprint
    models.live models.identity.live
    models.checkpoint models.weights.checkpoint
    models.construct models.weights.construct
    models.gguf_header models.weights.gguf
    models.initialise models.weights.initialise
    models.mamba_ssm models.weights.mamba_ssm
    models.nonfinite models.weights.nonfinite
    capture.influence_check capture.influence.check
    capture.influence_run capture.influence.batches
    capture.memory_sums capture.memory.sums
    metrics.cka_meter metrics.streaming_cka
    dynamics.classify_nd dynamics.conjecture
    tasks.haystack tasks.needle.haystack
    tasks.needle_prompts tasks.needle.prompts
    tasks.needle_table tasks.needle.table
    tasks.fact_kinds tasks.facts.kinds
    tasks.fact_table tasks.facts.table
    studies.config_fields studies.engine.parts
    studies.depth_grid studies.engine.depth_grid
    studies.feature_sink studies.engine.feature_sink
    studies.grid studies.engine.grid
    studies.grid_cost studies.engine.cost
    studies.grid_run studies.engine.cells
    studies.loading studies.engine.loading
    studies.machine capture.provenance
    studies.engine.provenance capture.provenance
    studies.matching studies.engine.matching
    studies.opening studies.engine.opening
    studies.phase studies.engine.phase
    studies.prompts studies.engine.prompts
    studies.sink studies.engine.sink
    studies.compare_config studies.compare.config
    studies.compare_pair studies.compare.pair
    studies.compare_steps studies.compare.steps
    studies.diagnose_blocks studies.diagnose.blocks
    studies.diagnose_evidence studies.diagnose.evidence
    studies.diagnose_flow studies.diagnose.flow
    studies.diagnose_readout studies.diagnose.readout
    studies.diagnose_statement studies.diagnose.statement
    studies.dynamics_apply studies.dynamics.apply
    studies.dynamics_layers studies.dynamics.layers
    studies.dynamics_paths studies.dynamics.paths
    studies.dynamics_simulate studies.dynamics.simulate
    studies.memory_config studies.memory.config
    studies.needle_config studies.needle.config
    studies.needle_read studies.needle.reading
    studies.needle_result studies.needle.result
    studies.needle_scores studies.needle.scores
    studies.probe_answers studies.probe.answers
    studies.probe_classes studies.probe.classes
    studies.probe_config studies.probe.config
    studies.probe_fit studies.probe.fits
    studies.probe_groups studies.probe.groups
    studies.probe_part studies.probe.part
    studies.probe_prompts studies.probe.prompts
    studies.probe_side studies.probe.side
    studies.probe_study studies.probe.steps
    studies.probe_table studies.probe.result
    studies.recency_config studies.recency.config
    studies.recency_findings studies.recency.findings
    studies.recency_ratio studies.recency.ratio
    studies.recency_result studies.recency.result
    studies.reproduce_check studies.reproduce.agreement
    studies.reproduce_claims studies.reproduce.claims
    studies.reproduce_compare studies.reproduce.comparison
    studies.reproduce_cost studies.reproduce.cost
    studies.reproduce_models studies.reproduce.models
    studies.reproduce_preflight studies.reproduce.preflight
    studies.reproduce_recipes studies.reproduce.flow
    studies.reproduce_result studies.reproduce.flow
    studies.reproduce_run studies.reproduce.study
    studies.recency_recipes studies.reproduce.statement
    studies.recency_figures studies.reproduce.influence
    studies.memory_figures studies.reproduce.memory
    studies.needle_figures studies.reproduce.needle
    studies.dynamics_figures studies.reproduce.dynamics
    studies.theory_apply studies.theory.apply
    studies.theory_checks theory.statements.flow
    studies.theory_checks_data theory.statements.printed_table
    studies.theory_checks_ssm theory.statements.state_space
    studies.theory_layer studies.theory.layer
    studies.theory_reading studies.theory.reading
    studies.theory_record theory.check
    studies.theory_verify studies.theory.verify
    studies.twins_verdict studies.twins.verdict
    report.page_build report.page.build
    report.page_compare report.data.comparable
    report.page_context report.data.context
    report.page_depth report.draw.depth
    report.page_interval report.data.interval
    report.page_labels report.data.labels
    report.page_model report.data.model
    report.page_runs report.data.runs
    report.page_text report.data.text
    report.html report.notebook.html
    report.plot report.notebook.plot
    report.plot_axis report.draw.axis
    report.plot_study report.draw.plotly
    report.palette report.draw.palette
    report.section_curve report.draw.curve
    report.section_lines report.draw.lines
    report.section_depth report.draw.depth
    report.dynamics_plot report.draw.dynamics
    report.figures_colour report.paper.colour
    report.figures_draw report.paper.figure
    report.figures_panel report.paper.panel
    report.figures_shape report.paper.shape
    report.figures_style report.paper.style
    report.figures_text report.paper.text
    report.figures_trace report.paper.trace
    report.figures_write report.paper.write
    report.compare_table report.terminal.compare
    report.demo_view report.terminal.demo
    report.diagnose_page report.terminal.diagnose
    report.dynamics_table report.terminal.dynamics
    report.fitted report.terminal.fitted
    report.grid_table report.terminal.grid
    report.list_table report.terminal.listing
    report.memory_table report.terminal.memory
    report.needle_table report.terminal.needle
    report.probe_table report.terminal.probe
    report.recency_figure report.terminal.paper_figure
    report.recency_table report.terminal.recency
    report.reproduce_table report.terminal.reproduce
    report.tables report.terminal.measure
    report.theory_table report.terminal.theory
    report.twins_table report.terminal.twins
    report.zoo_table report.terminal.zoo
    report.section_attention report.sections.attention
    report.section_cka report.sections.cka
    report.section_diagnosis report.sections.diagnosis
    report.section_dynamics report.sections.dynamics
    report.section_findings report.sections.findings
    report.section_influence report.sections.influence
    report.section_made report.sections.made
    report.section_memory report.sections.memory
    report.section_needle report.sections.needle
    report.section_probe report.sections.probe
    report.section_prompts report.sections.prompts
    report.section_recency report.sections.recency
    report.section_reproduce report.sections.reproduce
    report.section_scaling report.sections.scaling
    report.section_similarity report.sections.similarity
    report.section_steps report.sections.steps
    report.section_tables report.sections.tables
    report.section_theory report.sections.theory
    report.section_tokens report.sections.tokens
    report.section_trainings report.sections.trainings
    report.section_twin report.sections.twin
    report.section_verdict report.sections.verdict
"""
MOVED = {f"repflow.{old}": f"repflow.{new}" for old, new in (row.split() for row in _TABLE.strip().splitlines())}


def _warn(old: str, new: str, depth: int) -> None:
    warnings.warn(f"{old} has moved to {new}; the old name goes in the next release", DeprecationWarning, depth)


class _Elsewhere(Loader):
    def create_module(self, spec: ModuleSpec) -> None:
        return None  # Python makes an empty one, which `exec_module` replaces

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        _warn(old, MOVED[old], 2)
        sys.modules[old] = importlib.import_module(MOVED[old])


class MovedModules(MetaPathFinder):
    """Finds modules by the names they had before; asked only after every other finder has given up."""

    def find_spec(self, name: str, path: Iterable[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Where a moved module is, if `name` is one."""
        return ModuleSpec(name, _Elsewhere()) if name in MOVED else None


def successor(old: str, new: str) -> Callable[[str], Any]:
    """A package's `__getattr__`, where a module of the same name was: its names are those of `new`."""

    def get(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        if find_spec(f"{old}.{name}") is not None:  # `from package import module` asks here first
            return importlib.import_module(f"{old}.{name}")
        try:
            value = getattr(importlib.import_module(new), name)
        except AttributeError:
            raise AttributeError(f"module {old!r} has no attribute {name!r}") from None
        _warn(f"{old}.{name}", f"{new}.{name}", 3)
        return value

    return get


def register() -> None:
    """Let old import paths be found."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
