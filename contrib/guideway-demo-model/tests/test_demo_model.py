"""The package: found by its entry point, loadable by transformers, complete when built, right on its own examples."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from guideway import Engine, EngineConfig, JsonSchema, SamplingParams
from guideway.api import Model
from guideway_demo_model import DemoModel, guideway_model
from transformers import AutoModelForCausalLM, AutoTokenizer

PROJECT = Path(__file__).parent.parent
EXAMPLES = [json.loads(line) for line in (PROJECT / "examples" / "prompts.jsonl").read_text("utf-8").splitlines()]
PERSON = json.loads((PROJECT / "examples" / "person.schema.json").read_text("utf-8"))
ANSWERS: list[dict[str, Any]] = [
    {"name": "Peter Young", "age": 49, "email": "peter.young@mail.com", "city": "Perin", "married": False},
    {"name": "Haencor Green", "age": 80, "email": "haencor.green@corp.net", "city": "Fadellaburg", "married": True},
    {"name": "Helsel Brown", "age": 23, "email": "helsel@example.com", "city": "Cairo", "married": True},
    {"name": "Zoë Garcia", "age": 31, "email": "zoe@example.com", "city": "Zürich", "married": False},
    {
        "order_id": "X-27686",
        "customer": "Yanor Noren",
        "items": [
            {"name": "large blender", "quantity": 65, "price": 19.67},
            {"name": "light mug", "quantity": 4, "price": 133.39},
        ],
        "express": False,
    },
    {"guest": "Liam Morris", "place": "Doe Tools", "date": "2023-07-17", "people": 37, "room": "double"},
    {"guest": "Arlinya Gabel", "place": "Lewis Inc", "date": "2028-05-18", "people": 4, "room": "single"},
    {"name": "get_weather", "arguments": {"city": "Lagos", "unit": "celsius"}},
]


def test_the_entry_point_leads_to_the_model() -> None:
    (entry,) = [e for e in entry_points(group="guideway.v1") if e.name == "model.demo"]
    assert entry.load().guideway_model is guideway_model
    assert guideway_model() is DemoModel
    assert issubclass(DemoModel, Model)
    assert DemoModel.name == "demo"


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(DemoModel().path(), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(DemoModel().path())


def test_it_is_what_the_model_card_says(model: Any, tokenizer: Any) -> None:
    assert round(model.num_parameters() / 1e6, 2) == 2.73
    assert (model.config.vocab_size, model.config.max_position_embeddings) == (1536, 1024)
    assert len(tokenizer) == 1536
    assert tokenizer.eos_token_id == model.config.eos_token_id


def test_the_chat_template_marks_roles(tokenizer: Any) -> None:
    chat = [{"role": "user", "content": "Hello"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == (
        "<|user|>Hello<|assistant|>"
    )


def test_examples_are_valid_input() -> None:
    for example in EXAMPLES:
        assert example.keys() <= {"prompt", "schema"}
        jsonschema.Draft202012Validator.check_schema(example.get("schema", PERSON))


def test_it_answers_an_example_without_any_constraint(model: Any, tokenizer: Any) -> None:
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": EXAMPLES[2]["prompt"]}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    output = model.generate(**prompt, max_new_tokens=120, do_sample=False)
    answer = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert json.loads(answer) == ANSWERS[2]


@pytest.mark.slow
def test_every_example_is_answered_right_under_its_schema() -> None:
    prompts = [[{"role": "user", "content": example["prompt"]}] for example in EXAMPLES]
    params = [
        SamplingParams(max_tokens=400, constraint=JsonSchema(example.get("schema", PERSON))) for example in EXAMPLES
    ]
    with Engine(EngineConfig(model="demo", grammar=("llguidance",))) as engine:
        results = engine.generate(prompts, params)
    assert [json.loads(result.text) for result in results] == ANSWERS


def test_the_package_stays_small() -> None:
    files = [path for path in Path(__file__).parents[1].joinpath("src").rglob("*") if "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files if path.is_file()) <= 8_000_000


@pytest.mark.slow
def test_a_wheel_holds_the_weights(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path, PROJECT],
        check=True,
        timeout=120,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {info.filename: info.file_size for info in archive.infolist()}
    for file in DemoModel().path().iterdir():
        assert packed[f"guideway_demo_model/weights/{file.name}"] == file.stat().st_size
    assert {f"guideway_demo_model/{name}" for name in ("py.typed", "training/templates.toml")} <= packed.keys()
