"""What Prometheus reads at ``/metrics``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from runtime.control.guarded import GuardedController
from runtime.core import Outcome, Phase
from runtime.server.jobs import Usage
from runtime.server.trace import origins
from runtime.session import DecodeSession

REQUEST_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
STEP_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
DECIDE_S = (10e-6, 20e-6, 30e-6, 50e-6, 75e-6, 100e-6, 150e-6, 250e-6, 500e-6, 1e-3, 5e-3)


class Metrics:
    """The server's own registry. Label values come from the zoo and from this file, never from requests."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second sample for every one
        self._registry = one = CollectorRegistry()
        ProcessCollector(registry=one)
        self.info = Info("specpilot", "What is served", registry=one)
        self._of_requests(one)
        self._of_rounds(one)
        self._of_memory(one)
        self._of_the_guard(one)

    def _of_requests(self, one: CollectorRegistry) -> None:
        self.http = Counter("specpilot_http_requests", "HTTP answers", ("path", "status"), registry=one)
        self.requests = Counter("specpilot_requests", "Requests that reached the device", ("outcome",), registry=one)
        self.waiting = Gauge("specpilot_requests_waiting", "Requests that wait for the device", registry=one)
        self.request_s = self._times("request", "From arrival to the last token", REQUEST_S)
        self.waited_s = self._times("waited", "From arrival to the device", REQUEST_S)
        self.ttft_s = self._times("ttft", "From arrival to the first token", REQUEST_S)
        self.prompt_tokens = Counter("specpilot_prompt_tokens", "Prompt tokens", ("source",), registry=one)
        self.tokens = Counter("specpilot_tokens", "Committed tokens by where they came from", ("origin",), registry=one)

    def _of_rounds(self, one: CollectorRegistry) -> None:
        self.round_s = self._times("round", "One propose-verify-commit round", STEP_S)
        self.observe_s = self._times("observe", "Making one observation", DECIDE_S)
        self.decide_s = self._times("decide", "One decision of the controller", DECIDE_S)
        self.decide_failures = Counter(
            "specpilot_decide_failures", "Decisions the controller failed at; decoded plain", registry=one
        )
        self.rounds = Counter("specpilot_rounds", "Rounds", ("draft",), registry=one)
        self.drafted = Counter("specpilot_drafted_tokens", "Guesses verified", ("draft",), registry=one)
        self.accepted = Counter("specpilot_accepted_tokens", "Guesses accepted", ("draft",), registry=one)
        self.device_s = Counter("specpilot_device_seconds", "Time of admissions and rounds", registry=one)
        self.plain_s = Counter("specpilot_plain_seconds", "Plain decoding's time for it by the profile", registry=one)
        self.stall_s = Counter("specpilot_stall_seconds", "Of it, waiting for loads", registry=one)
        self.guards = Counter("specpilot_guard_forwards", "Forwards that re-decided a near-tie", registry=one)

    def _of_memory(self, one: CollectorRegistry) -> None:
        self.loads = Gauge("specpilot_loads", "Draft loads since the start", registry=one)
        self.evictions = Gauge("specpilot_evictions", "Drafts and KV blocks given up since the start", registry=one)
        self.budget = Gauge("specpilot_budget_bytes", "The memory budget", registry=one)
        self.aside = Gauge(
            "specpilot_set_aside_bytes", "Of the budget, given up for now since the machine is short", registry=one
        )
        self.memory = Gauge("specpilot_memory_bytes", "Parts of the budget in use", ("part",), registry=one)
        self.kv_disk = Gauge("specpilot_kv_disk_bytes", "Stored KV on disk", registry=one)
        self.kv_failed = Gauge("specpilot_kv_disk_failed", "1 = KV is no longer copied to disk", registry=one)
        self.resident = Gauge("specpilot_draft_resident", "1 = the draft is usable now", ("draft",), registry=one)
        self.broken = Gauge("specpilot_draft_failed", "1 = the draft cannot be used", ("draft",), registry=one)

    def _of_the_guard(self, one: CollectorRegistry) -> None:
        self.guard = Gauge("specpilot_guard", "What the policy's guard did since the start", ("what",), registry=one)
        self.guard_lost = Gauge("specpilot_guard_lost_steps", "Worst recent loss against plain, steps", registry=one)
        self.falling_back = Gauge("specpilot_guard_falling_back", "1 = the heuristic decides", registry=one)

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self._registry)

    def take(self, outcome: Outcome, names: Sequence[str]) -> None:
        """Add a step of the device."""
        done, draft = outcome.round, outcome.decision.draft
        if outcome.phase is Phase.COMPLETE:
            return
        self.device_s.inc(outcome.seconds)
        self.plain_s.inc(outcome.plain_seconds)
        self.stall_s.inc(outcome.stall_s)
        self.guards.inc(outcome.guard_forwards + (done.guard_forwards if done else 0))
        if outcome.phase is Phase.ADMIT:
            self.prompt_tokens.labels("computed").inc(outcome.prefill_tokens)
            self.prompt_tokens.labels("reused").inc(outcome.reused_tokens)
        for origin in origins(outcome):
            self.tokens.labels(origin).inc()
        if done is not None:
            name = "none" if draft is None else names[draft]
            self.round_s.observe(outcome.seconds)
            self.rounds.labels(name).inc()
            if draft is not None:
                self.drafted.labels(name).inc(done.drafted)
                self.accepted.labels(name).inc(done.accepted)

    def finish(self, usage: Usage, total_s: float, outcome: str) -> None:
        """A request has left the device."""
        self.requests.labels(outcome).inc()
        self.request_s.observe(total_s)
        self.waited_s.observe(usage.waited_s)
        if usage.completion_tokens:
            self.ttft_s.observe(usage.ttft_s)

    def look(self, session: DecodeSession) -> None:
        """Note what is in memory; only the thread that owns the session may call this."""
        memory = session.memory
        self.budget.set(memory.config.budget_bytes)
        self.aside.set(memory.aside_bytes)
        self.memory.labels("kv").set(memory.kv.bytes)
        self.memory.labels("workspace").set(memory.config.workspace_bytes)
        self.memory.labels("drafts").set(memory.used_bytes - memory.kv.bytes - memory.config.workspace_bytes)
        self.kv_disk.set(memory.kv.disk_bytes)
        self.kv_failed.set(memory.prefixes.disk.failed is not None)
        self.loads.set(memory.loads)
        self.evictions.set(memory.evictions)
        for index, draft in enumerate(memory.drafts):
            failed = memory.states[index].failed is not None
            self.resident.labels(draft.name).set(memory.resident(index) and not failed)
            self.broken.labels(draft.name).set(failed)

    def look_at_guard(self, guard: GuardedController) -> None:
        """Note what the guard did, and whether the policy decides."""
        for name, value in asdict(guard.counters).items():
            self.guard.labels(name).set(value)
        self.guard_lost.set(guard.lost_steps)
        self.falling_back.set(guard.falling_back)

    def _times(self, what: str, help_: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"specpilot_{what}_seconds", f"{help_}, seconds", buckets=buckets, registry=self._registry)
