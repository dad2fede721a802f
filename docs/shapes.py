"""What stands behind a parameter or a field in the code, in the reference too.

A griffe extension. Shapes and units are comments there:

    def aggregate(
      step_scores: jax.Array,  # [..., P]
    ) -> jax.Array:  # [...]

They go in front of what the docstring says of the same thing.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import griffe

# The name of '  step_scores: jax.Array,  # [..., P]', and its comment.
NAMED = re.compile(r'\s+\*{0,2}(\w+): .*?\S  # (.+)')
RETURNED = re.compile(r'.*\) -> .*:  # (.+)')
SHAPE = re.compile(r'(\[[^\]]*\])')
ORDER = {
  'parameters': 1,
  'attributes': 1,
  'returns': 2,
  'yields': 2,
  'raises': 3,
}


class Shapes(griffe.Extension):
  """Of all functions and classes of a package that have a docstring."""

  def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
    add_comments(pkg)


def add_comments(parent: griffe.Module | griffe.Class) -> None:
  for member in parent.members.values():
    if member.is_alias:
      continue
    if member.is_class and member.docstring:
      lines = member.source.splitlines()
      fields = {
        name: lines[field.lineno - member.lineno]
        for name, field in member.attributes.items()
        if member.lineno <= (field.lineno or 0) <= member.endlineno
      }
      document(
        member,
        member.attributes,
        comments(fields.values()),
        griffe.DocstringSectionAttributes,
        griffe.DocstringAttribute,
      )
    elif member.is_function and member.docstring:
      document(
        member,
        {parameter.name: parameter for parameter in member.parameters},
        comments(signature(member)),
        griffe.DocstringSectionParameters,
        griffe.DocstringParameter,
      )
      document_return(member)
    if member.is_module or member.is_class:
      add_comments(member)


def signature(function: griffe.Function) -> list[str]:
  """The lines above the docstring."""
  lines = function.source.splitlines()
  return lines[: function.docstring.lineno - function.lineno]


def comments(lines: Iterable[str]) -> dict[str, str]:
  """What stands behind the names."""
  found = (match.groups() for line in lines if (match := NAMED.fullmatch(line)))
  return {name: coded(text) for name, text in found}


def coded(text: str) -> str:
  """With shapes as code, which Markdown would take for links."""
  return SHAPE.sub(r'`\1`', text)


def table(of: griffe.Object, section: type[griffe.DocstringSection]) -> list:
  """The rows of a section of a docstring, which is added where it lacks."""
  sections = of.docstring.parsed
  kind = section([]).kind
  if all(each.kind is not kind for each in sections):
    sections.append(section([]))
    sections.sort(key=lambda each: ORDER.get(each.kind.value, 0))
  return next(each.value for each in sections if each.kind is kind)


def document(
  of: griffe.Class | griffe.Function,
  members: Mapping[str, Any],
  found: Mapping[str, str],
  section: type[griffe.DocstringSection],
  row: type[griffe.DocstringAttribute] | type[griffe.DocstringParameter],
) -> None:
  """Puts comments in front of descriptions, or where there is none."""
  if not found:
    return
  rows = table(of, section)
  known = {each.name: each for each in rows}
  for name, text in found.items():
    if name in known:
      known[name].description = f'{text}; {known[name].description}'
    elif name in members:
      annotation = members[name].annotation
      known[name] = row(name, description=text, annotation=annotation)
  order = {name: place for place, name in enumerate(members)}
  # What the docstring alone knows, such as *args, comes last.
  rows[:] = sorted(
    known.values(), key=lambda each: order.get(each.name, len(order))
  )


def document_return(function: griffe.Function) -> None:
  ending = RETURNED.fullmatch((signature(function) or [''])[-1])
  yields = any(
    part.kind.value == 'yields' for part in function.docstring.parsed
  )
  if ending is None or yields:
    return
  text = coded(ending[1])
  rows = table(function, griffe.DocstringSectionReturns)
  if rows:
    rows[0].description = f'{text}; {rows[0].description}'
  else:
    annotation = function.returns
    rows.append(
      griffe.DocstringReturn('', description=text, annotation=annotation)
    )
