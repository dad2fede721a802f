"""Shows the comments behind parameters and fields in the reference.

This is an extension of griffe, which reads the code for the site. Shapes and
units are comments in the code:

    def aggregate(
      step_scores: jax.Array,  # [..., P]
    ) -> jax.Array:  # [...]

In the reference they stand in front of the docstring's own words.
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
  """Adds the comments of every documented function and class of a package."""

  def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
    add_comments(pkg)


def add_comments(parent: griffe.Module | griffe.Class) -> None:
  """Adds the comments of everything below a module or class."""
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
  """Returns the lines of a function above its docstring."""
  lines = function.source.splitlines()
  return lines[: function.docstring.lineno - function.lineno]


def comments(lines: Iterable[str]) -> dict[str, str]:
  """Returns the comment behind each name."""
  found = (match.groups() for line in lines if (match := NAMED.fullmatch(line)))
  return {name: coded(text) for name, text in found}


def coded(text: str) -> str:
  """Marks shapes as code, because Markdown would take them for links."""
  return SHAPE.sub(r'`\1`', text)


def table(of: griffe.Object, section: type[griffe.DocstringSection]) -> list:
  """Returns the rows of a docstring's section, and adds it if it is missing."""
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
  """Puts comments in front of descriptions, or in place of missing ones."""
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
  """Puts the comment behind the return type in front of what is returned."""
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
