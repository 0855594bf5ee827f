"""What all sections of a scenario file have in common: no field beyond those declared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, SerializeAsAny, model_serializer, model_validator
from pydantic_core import PydanticCustomError

from testbed.registries import suggestion


def check_fields(model: type[BaseModel], value: Any) -> Any:
    """Refuse what is not a mapping of the model's fields, with the nearest name as a hint."""
    if isinstance(value, model):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is not a mapping of fields to values")
    for key in value:
        if key not in model.model_fields:
            raise PydanticCustomError(
                "unknown_field",
                "unknown field; {hint}",
                {"field": str(key), "hint": suggestion(str(key), model.model_fields)},
            )
    return value


class Section(BaseModel):
    """Base of every section: immutable, no field beyond those declared."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, value: Any) -> Any:
        return check_fields(cls, value)


def known(value: str, allowed: list[str]) -> str:
    """The name, if it is one of these."""
    if value not in allowed:
        raise ValueError(f"{value!r} is not known; {suggestion(value, allowed)}")
    return value


def choose(value: Any, selector: str, registered: Mapping[str, type[BaseModel]]) -> dict[str, Any]:
    """Split ``{selector: name, **parameters}`` and validate the parameters by the named model."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is not a mapping with {selector!r}")
    parameters = dict(value)
    name = parameters.pop(selector, None)
    if not isinstance(name, str) or name not in registered:
        raise PydanticCustomError(
            "unknown_choice",
            "{name} is not known; {hint}",
            {"field": selector, "name": repr(name), "hint": suggestion(str(name), registered)},
        )
    model = registered[name]
    check_fields(model, parameters)
    return {selector: name, "parameters": _validated(model, parameters)}


def _validated(model: type[BaseModel], parameters: dict[str, Any]) -> BaseModel:
    """The parameters as the model has them, without pydantic's conversions: true is not 1.

    Strategies declare plain types. Strict validation has names for enumerations and lists for
    tuples, as a file has them, only in pydantic's JSON mode.
    """
    try:
        text = json.dumps(parameters)
    except TypeError as error:  # YAML has dates and sets
        raise ValueError(
            f"{parameters!r} holds more than text, numbers, true or false, lists and mappings"
        ) from error
    return model.model_validate_json(text, strict=True)


class Choice(BaseModel):
    """A strategy by name, with that strategy's own parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    parameters: SerializeAsAny[BaseModel]

    @model_serializer
    def _flat(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in type(self).model_fields}
        parameters: BaseModel = own.pop("parameters")
        return {**own, **parameters.model_dump(mode="json")}
