"""What /metrics says is what the answers said."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from support.serving import CHAT, TEXT, serving, wait_for

ASKED = [{"role": "user", "content": "Why is the sky blue, and the sea, and the sky blue?"}]


def test_counts_add_up_to_the_usage_of_all_answers(model_path: Path) -> None:
    with serving(model_path, slots=3, server={"queue": 5}, budget=6) as running:
        bodies = [{"messages": ASKED, "max_tokens": count, "n": 1 + count % 2} for count in (1, 9, 40)]
        usages = [running.post(CHAT, body).json()["usage"] for body in bodies]
        running.post(TEXT, {"prompt": "a", "temperature": -1})
        with running.http() as client:
            client.get("/v1/models/other")
            client.get("/nothing")
            answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    values = {
        (sample.name.removeprefix("draftgraph_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    num_texts = sum(body["n"] for body in bodies)
    drafts = [usage["draft"] for usage in usages]
    passes = sum(draft["target_passes"] for draft in drafts)
    tokens = sum(usage["completion_tokens"] for usage in usages)
    sums = {
        ("generated_tokens_total",): tokens,
        ("target_passes_total",): passes,
        ("tokens_per_step_count",): passes,
        ("tokens_per_step_sum",): tokens - num_texts,  # the first token is the prompt's pass
        ("drafts_per_pass_count",): passes,
        ("drafts_per_pass_sum",): sum(draft["verified_rows"] for draft in drafts) - passes,
        ("time_to_first_token_seconds_count",): num_texts,
        ("texts_total", "length"): num_texts,
        ("http_requests_total", CHAT, "200"): 3,
        ("http_requests_total", TEXT, "400"): 1,
        ("http_requests_total", "/v1/models/{model}", "404"): 1,
        ("http_requests_total", "other", "404"): 1,
        ("places",): 8,
        ("places_taken",): 0,
        ("slots",): 3,
        ("slots_free",): 3,
        ("requests_running",): 0,
        ("requests_waiting",): 0,
    }
    for source in {name for draft in drafts for name in draft["by_source"]}:
        for kind in ("proposed", "accepted"):
            sums[f"drafts_{kind}_total", source] = sum(d["by_source"].get(source, {}).get(kind, 0) for d in drafts)
    assert {key: values.get(key) for key in sums} == sums
    assert passes > 0
    assert values["kv_blocks_used",] == 0 < values["kv_blocks_cached",] < values["kv_blocks",]
    assert values["decode_seconds_total",] > 0
    assert values["time_to_first_token_seconds_sum",] > 0 < values["inter_token_seconds_sum",]


def test_running_and_waiting_texts_are_told_apart(model_path: Path) -> None:
    with serving(model_path, slots=2, server={"queue": 5}) as running, ThreadPoolExecutor(5) as pool:
        running.brake.seconds = 0.02
        jobs = [pool.submit(running.post, TEXT, {"prompt": "a", "max_tokens": 20}) for _ in range(5)]
        wait_for(lambda: (running.metric("requests_running"), running.metric("requests_waiting")) == (2, 3))
        assert running.metric("slots_free") == 0
        assert running.metric("kv_blocks_used") > 0
        assert (running.metric("places"), running.metric("places_taken")) == (7, 5)
        for job in jobs:
            assert job.result().status_code == 200
        running.assert_idle()
