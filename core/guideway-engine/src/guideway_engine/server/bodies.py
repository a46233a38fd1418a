"""Bodies of requests: how they are read, and their schemas."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from guideway.errors import InvalidRequest, LimitExceeded, passable
from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema

from guideway_engine.server.json_reading import read_json

__all__ = ["MAX_INPUTS", "Body", "ClassifyBody", "EmbeddingsBody", "RerankBody", "inputs_of", "read_body"]

MAX_INPUTS = 2048
"""Maximum number of inputs of one call, as in OpenAI's API. All results of one call are in memory at once."""

MAX_FIELD_LENGTH = 64
"""Maximum number of characters of an unknown field's name that the response repeats."""

MAX_TENANT_LENGTH = 256
"""Maximum number of characters of ``user``."""

ONE_INPUT: dict[str, Any] = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}, "minItems": 1}]
}
PAIR: dict[str, Any] = {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2}
DOCUMENT: dict[str, Any] = {
    "anyOf": [{"type": "string"}, {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}]
}

B = TypeVar("B", bound="Body")


def several(*items: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of one such input or a list of them."""
    return {"anyOf": [*items[0]["anyOf"], {"type": "array", "items": {"anyOf": list(items)}, "maxItems": MAX_INPUTS}]}


class Body(BaseModel):
    """Fields of every call. Inputs are not validated here: an error in one input affects only that input."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str = Field(description="The name that the server gives its model, see /v1/models.")
    user: str | None = Field(
        default=None,
        max_length=MAX_TENANT_LENGTH,
        description="On whose behalf. Where the server trusts its clients, users share it fairly when it is busy; "
        "elsewhere it is only for the server's log.",
    )
    priority: int = Field(default=0, description="Lower goes first, where the server trusts its clients; elsewhere 0.")
    truncate: Literal["refuse", "right", "left"] | None = Field(
        default=None, description="The policy for an input that is longer than the model's context."
    )


class EmbeddingsBody(Body):
    """Body of ``/v1/embeddings``."""

    input: Annotated[Any, WithJsonSchema(several(ONE_INPUT))]
    dimensions: int | None = Field(default=None, ge=1, description="As many of a vector's first numbers.")
    encoding_format: Literal["float", "base64"] = Field(
        default="float", description="base64: of little-endian float32 numbers."
    )


class RerankBody(Body):
    """Body of ``/v1/rerank``."""

    query: Annotated[Any, WithJsonSchema({"type": "string"})]
    documents: Annotated[list[Any], WithJsonSchema({"type": "array", "items": DOCUMENT, "maxItems": MAX_INPUTS})]
    top_n: int | None = Field(default=None, ge=1, description="So many of the best, and those that failed.")
    return_documents: bool = Field(default=True, description="Whether each result has the text of its document.")


class ClassifyBody(Body):
    """Body of ``/v1/classify``."""

    input: Annotated[Any, WithJsonSchema(several(ONE_INPUT, PAIR))]


def read_body(cls: type[B], raw: bytes) -> B:
    """Parse `raw` as JSON and return the body. Raises `InvalidRequest`."""
    try:
        content = read_json(raw.decode(json.detect_encoding(raw), "surrogatepass"))
    except LimitExceeded:
        raise
    except ValueError as error:
        raise InvalidRequest(f"the body is no JSON: {passable(str(error))}", field="body") from None
    if not isinstance(content, dict):
        raise InvalidRequest("the body must be a JSON object", field="body")
    if (unknown := next((name for name in content if name not in cls.model_fields), None)) is not None:
        field = passable(unknown[:MAX_FIELD_LENGTH])
        raise InvalidRequest(f"there is no field {field!r}; known: {', '.join(cls.model_fields)}", field=field)
    try:
        return cls.model_validate(content)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(map(str, wrong["loc"]))
        raise InvalidRequest(f"{field}: {wrong['msg']}", field=field) from None


def inputs_of(given: Any, field: str = "input") -> list[Any]:
    """Return the inputs of a call as a list; one text or one list of token ids counts as one input. Raises
    `InvalidRequest`, and `LimitExceeded` if there are too many."""
    if isinstance(given, str | dict):
        return [given]
    if not isinstance(given, list) or not given:
        kinds = "a list" if field == "documents" else "a text or a list"
        raise InvalidRequest(f"{field} must be {kinds} that is not empty", field=field)
    if all(isinstance(item, int) and not isinstance(item, bool) for item in given):
        return [given]
    if len(given) > MAX_INPUTS:
        raise LimitExceeded(
            f"{field} has {len(given)} items, and one call takes {MAX_INPUTS}; send several calls", field=field
        )
    return given
