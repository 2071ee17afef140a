"""Traces: the W3C header is parsed strictly and continued by each attempt."""

from __future__ import annotations

import pytest

from leasehold.observe import traces
from leasehold.observe.traces import TraceContext, new_trace, parse_traceparent, span, trace_of

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_traceparent_survives_the_round_trip():
    header = f"00-{TRACE}-{SPAN}-01"
    context = parse_traceparent(header)
    assert context == TraceContext(TRACE, SPAN, is_sampled=True)
    assert context.traceparent == header


def test_later_version_is_parsed_as_far_as_it_is_known():
    assert parse_traceparent(f"cc-{TRACE}-{SPAN}-03-more") == TraceContext(TRACE, SPAN)
    assert parse_traceparent(f" 00-{TRACE}-{SPAN}-00 ") == TraceContext(TRACE, SPAN, False)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "nonsense",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01\n00",
    ],
)
def test_malformed_header_starts_a_new_trace(header):
    assert parse_traceparent(header) is None
    assert trace_of(header).trace_id != trace_of(header).trace_id


def test_new_trace_can_be_parsed():
    made = new_trace()
    assert parse_traceparent(made.traceparent) == made


def test_span_has_the_same_trace_id_and_a_new_span_id(monkeypatch):
    monkeypatch.setattr(traces, "_OPENTELEMETRY", None)
    parent = TraceContext(TRACE, SPAN, is_sampled=False)
    with span("submit", parent, {"target": "sms"}) as made:
        assert made.trace_id == TRACE
        sent = parse_traceparent(made.traceparent)
        assert (sent.trace_id, sent.is_sampled) == (TRACE, False)
        assert sent.span_id != SPAN
    assert made.traceparent == sent.traceparent


def test_span_without_a_parent_keeps_its_ids(monkeypatch):
    monkeypatch.setattr(traces, "_OPENTELEMETRY", None)
    with span("submit", None) as made, span("submit", None) as other:
        assert parse_traceparent(made.traceparent).trace_id == made.trace_id
        assert made.trace_id == made.trace_id != other.trace_id


def test_error_inside_a_span_is_not_swallowed():
    with pytest.raises(ZeroDivisionError), span("submit", new_trace()):
        raise ZeroDivisionError


def test_spans_are_recorded_by_opentelemetry_if_configured(monkeypatch):
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="the extra otel is not installed")
    from opentelemetry import trace
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    # The check is repeated after a second; repeat it now.
    monkeypatch.setattr(traces._UNCONFIGURED, "until", 0.0)
    with span("submit", TraceContext(TRACE, SPAN), {"target": "sms"}) as made:
        pass
    [exported] = exporter.get_finished_spans()
    assert f"{exported.context.span_id:016x}" == made.span_id
    assert f"{exported.parent.span_id:016x}" == SPAN
    assert (exported.name, exported.attributes["target"]) == ("submit", "sms")
