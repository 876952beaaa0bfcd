"""Virtual models of the fleet file: what is refused, with line, field and fix."""

import pytest
from fleet_file_stage import MODELS, refused


def virtual(*lines: str) -> str:
    """One virtual model; its second key stands on line 3."""
    return "virtual_models:\n  - name: auto\n" + "".join(f"    {line}\n" for line in lines)


RULES = ("default: big", "rules:")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            virtual("ladder: [big, small]").replace("auto", "big"),
            "fleet.yaml:2: virtual_models[0].name: is 'big', which is a model of this file; use",
        ),
        (
            virtual("ladder: [big, small]", "") + "  - {name: auto, default: big}\n",
            "fleet.yaml:5: virtual_models[1].name: is 'auto', which is a virtual model of this",
        ),
        (
            virtual(),
            "fleet.yaml:2: virtual_models[0]: virtual leads to no model; use one of: ladder",
        ),
        (
            virtual("ladder: [big, small]", "default: big"),
            "fleet.yaml:3: virtual_models[0].ladder: is one way too many; use one of",
        ),
        (
            virtual("ladder: [big, small]", "degrade: {ladder: [big, small]}"),
            "fleet.yaml:4: virtual_models[0].degrade: is one way too many; use one of",
        ),
        (
            virtual("ladder: [big]"),
            "fleet.yaml:3: virtual_models[0].ladder: is 'big'; name at least two models",
        ),
        (
            virtual("ladder: [big, tiny]"),
            (
                "fleet.yaml:3: virtual_models[0].ladder[1]: is 'tiny', which is no model of this "
                "file; use one of big, small"
            ),
        ),
        (
            virtual("degrade:", "  ladder: [big, small]", "  step_s: 0"),
            "fleet.yaml:5: virtual_models[0].degrade.step_s: is 0.0; use finite seconds above 0",
        ),
        (
            virtual("degrade: {ladder: [big, small]}", "")
            + "  - {name: two, ladder: [big, small]}\n",
            "fleet.yaml:5: virtual_models[1].ladder: begins at 'big', as that of 'auto'; begin",
        ),
        (
            virtual("degrade:", "  ladder: [big, small]", "  order: [latency]"),
            "fleet.yaml:5: virtual_models[0].degrade.order: is latency; name quality, and what",
        ),
        (
            virtual("degrade:", "  ladder: [big, small]", "  order: [quality, price]"),
            "fleet.yaml:5: virtual_models[0].degrade.order[1]: ",
        ),
        (
            virtual("degrade:", "  ladder: [big, small]", "  patience_s: 0s"),
            "fleet.yaml:5: virtual_models[0].degrade.patience_s: is 0.0; use finite seconds",
        ),
        (
            virtual("degrade:", "  ladder: [big, small]", "  capped_tokens: 0"),
            "fleet.yaml:5: virtual_models[0].degrade.capped_tokens: is 0; use 1 token or more",
        ),
        (virtual("default: tiny"), "fleet.yaml:3: virtual_models[0].default: is 'tiny', which is"),
        (virtual("default: auto"), "fleet.yaml:3: virtual_models[0].default: is 'auto', which is"),
        (
            virtual("rules:", "  - {when: {tools: true}, use: big}"),
            "fleet.yaml:2: virtual_models[0].default: is missing; name the model for requests",
        ),
        (
            virtual(*RULES, "  - {use: small}"),
            "fleet.yaml:3: virtual_models[0].default: can never be used; remove it, or give",
        ),
        (
            virtual("rules:", "  - {use: small}", "  - {use: big}"),
            "fleet.yaml:5: virtual_models[0].rules[1]: can never match; give the rule before it",
        ),
        (
            virtual(*RULES, "  - {when: {tools: true}}"),
            "fleet.yaml:5: virtual_models[0].rules[0].use: is missing; name a model, or a hook",
        ),
        (
            virtual(*RULES, "  - when: {tools: true}", "    use: tiny"),
            "fleet.yaml:6: virtual_models[0].rules[0].use: is 'tiny', which is no model",
        ),
        (
            virtual(*RULES, "  - {when: {tools: true}, use: small, check: [json]}"),
            "fleet.yaml:5: virtual_models[0].rules[0].escalate: is missing; name the model to ask",
        ),
        (
            virtual(*RULES, "  - {when: {tools: true}, use: small, escalate: big}"),
            "fleet.yaml:5: virtual_models[0].rules[0].check: is missing; say in 'check' when",
        ),
        (
            virtual(*RULES, "  - {when: {tools: true}, use: big, check: [json], escalate: big}"),
            "fleet.yaml:5: virtual_models[0].rules[0].escalate: is 'big', which has just failed",
        ),
        (
            virtual(*RULES, "  - {when: {tools: true}, use: big, check: [json], escalate: auto}"),
            "fleet.yaml:5: virtual_models[0].rules[0].escalate: is 'auto', which is no model",
        ),
        (
            virtual(*RULES, "  - {when: {tools: true}, use: big, check: [spelling], escalate: s}"),
            "fleet.yaml:5: virtual_models[0].rules[0].check[0]: must be one of 'length', 'json'",
        ),
        (
            virtual(*RULES, "  - when: {tenant: [t]}", "    use: small"),
            (
                "fleet.yaml:5: virtual_models[0].rules[0].when.tenant[0]: is 't', which is no "
                "tenant of this file; use one of default"
            ),
        ),
        (
            virtual(*RULES, "  - {when: {prompt_tokens_min: 2, prompt_tokens_max: 1}, use: big}"),
            "fleet.yaml:5: virtual_models[0].rules[0].when.prompt_tokens_max: is 1: nothing can",
        ),
        (
            virtual(*RULES, "  - {when: {header: {authorization: x}}, use: big}"),
            "fleet.yaml:5: virtual_models[0].rules[0].when.header: reads 'authorization'; use",
        ),
        (
            virtual(*RULES, "  - {when: {header: {X-Tier: x}}, use: big}"),
            "fleet.yaml:5: virtual_models[0].rules[0].when.header.X-Tier: does not fit",
        ),
        (
            virtual(*RULES, "  - {when: {hook: os.system}}"),
            "fleet.yaml:5: virtual_models[0].rules[0].when.hook: does not fit (is 'os.system')",
        ),
        (
            virtual(*RULES, "  - {when: {hook_headers: [x-a]}, use: big}"),
            "fleet.yaml:5: virtual_models[0].rules[0].when.hook_headers: is set without a hook",
        ),
        (
            virtual(*RULES, "  - {when: {jsn: true}, use: big}"),
            (
                "fleet.yaml:5: virtual_models[0].rules[0].when.jsn: is not a known key; did you "
                "mean 'json'?"
            ),
        ),
    ],
)
def test_a_bad_virtual_model_is_refused_where_it_stands(tmp_path, text, told):
    assert refused(tmp_path, text + MODELS).startswith(told)


def test_a_ladder_of_embedding_models_is_refused(tmp_path):
    shape = "canary: {shape: embedding, rule: cosine}"
    vectors = MODELS.replace("endpoints: [http://a:1]}", f"endpoints: [http://a:1], {shape}}}")
    assert (
        "virtual_models[0].ladder[0]: is 'big', which gives embeddings: no model can stand in for "
        "another; give each its own name"
        in refused(tmp_path, vectors + virtual("ladder: [big, small]"))
    )
