"""Renders the chat templates of tests/golden/chat.json anew; needs jinja2.

The file has templates, variables and cases; this writes "text" or "refused" of each case. The
environment is the one that transformers renders chat templates with: trim_blocks, lstrip_blocks,
loop controls, raise_exception, and json.dumps without ASCII escapes as tojson. The templates were
written for this test; their constructs are those of templates that models of the Llama, Qwen,
Mistral, Gemma and Zephyr kinds come with.

    python3 tests/peers/make_chat.py tests/golden/chat.json
"""
import json
import sys

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = lambda x: json.dumps(x, ensure_ascii=False)
    env.globals["raise_exception"] = raise_exception
    return env


def render(golden, case):
    template = environment().from_string(golden["templates"][case["template"]])
    variables = {**golden["variables"], **case["more"]}
    try:
        return {"text": template.render(messages=case["messages"], **variables)}
    except (jinja2.exceptions.TemplateError, TypeError) as problem:
        return {"refused": str(problem)}


def main(path):
    with open(path, encoding="utf-8") as file:
        golden = json.load(file)
    for case in golden["cases"]:
        case.pop("text", None)
        case.pop("refused", None)
        case.update(render(golden, case))
    with open(path, "w", encoding="utf-8") as file:
        json.dump(golden, file, ensure_ascii=False, indent=1, sort_keys=True)
        file.write("\n")


main(sys.argv[1])
