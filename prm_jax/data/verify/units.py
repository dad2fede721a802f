"""Knows the spellings of units: km and kilometers, a.m. and am, $ and USD.

`quantities.py` compares the units of two numbers by it. Nothing is converted: a
kilometer does not equal a thousand meters.
"""

import re

MONEY = {'$': 'dollar', '€': 'euro', '£': 'sterling', '¥': 'yen', '¢': 'cent'}
# One unit a line. Its first spelling stands for it in comparisons.
_MEASURES = """
kilometer kilometre km kms
meter metre m
centimeter centimetre cm cms
millimeter millimetre mm
mile mi
yard yd yds
foot feet ft
inch in
kilogram kilo kg kgs
gram gramme gm g
milligram mg
pound
lb lbs
ounce oz
liter litre l
milliliter millilitre ml
gallon gal
hour hr hrs h
minute min mins
second sec secs s
"""
_OTHERS = """
year yr
month
week wk
day
mph
kph kmh km/h
mps m/s
dollar usd buck
euro eur
sterling gbp
person people
child children
man men
woman women
tooth teeth
mouse mice
goose geese
leaf leaves
loaf loaves
half halves
shelf shelves
knife knives
"""
_CANONICAL = {
  spelling: line.split()[0]
  for line in (_MEASURES + _OTHERS).split('\n')
  for spelling in line.split()
}
_MEASURED = {line.split()[0] for line in _MEASURES.strip().split('\n')}
# Pounds may be a weight or money, and degrees of either scale.
_TWO_MEANINGS = (
  *({'pound', 'lb'}, {'pound', 'sterling'}),
  *({'degree', 'celsius'}, {'degree', 'fahrenheit'}),
)
_PHRASES = (
  (r'\.', ''),
  (r'^([ap]) m$', r'\1m'),
  (r'^degrees? ?(?:c|celsius)$', 'celsius'),
  (r'^degrees? ?(?:f|fahrenheit)$', 'fahrenheit'),
  (r'^(?:miles?|mi) ?(?:per|an|/) ?(?:hour|hr|h)$', 'mph'),
  (r'^(?:kilomet(?:er|re)s?|km) ?(?:per|an|/) ?(?:hour|hr|h)$', 'kph'),
  (r'^(?:met(?:er|re)s?|m) ?(?:per|a|/) ?(?:second|sec|s)$', 'mps'),
  (r'^(\S+) squared$', r'square \1'),
  (r'^(\S+) cubed$', r'cubic \1'),
)
# What a rate is counted by follows: per hour, /hour, an hour.
_PER = re.compile(
  r'(?:^| )per | ?/ ?| an? (?=(?:second|minute|hour|day|week|month|year)\b)'
)
_POWERS = {'square': '^2', 'sq': '^2', 'cubic': '^3', 'cu': '^3'}
# Plural and singular get the same stem, which need not be a word.
_ENDINGS = (
  (re.compile(r'(?:ies?|y)$'), 'y'),
  (re.compile(r'(x|ch|sh|ss|us|z|o)es?$'), r'\1'),
  (re.compile(r'(?<![su])s$'), ''),
)


def canonical(unit: str) -> str:
  """Returns one name for all spellings of a unit.

  Of several words only the first counts, but for "square" and "cubic". A rate
  is two units: "dollars per hour" gives "dollar/hour", and "per hour" "/hour".

  Args:
    unit: as written after a number, in lower case; '' for none.
  """
  unit = _respell(unit)
  parts = [unit] if unit in _CANONICAL else _PER.split(unit)  # mps, m per min
  return '/'.join(map(_canonical_part, parts))


def _respell(unit: str) -> str:
  for pattern, replacement in _PHRASES:
    unit = re.sub(pattern, replacement, unit)
  return unit


def _canonical_part(unit: str) -> str:
  """Returns one name for all spellings of a unit that is no rate."""
  word, _, rest = _respell(unit).partition(' ')
  if word in _POWERS and rest:
    return _canonical_part(rest) + _POWERS[word]
  word, caret, power = word.partition('^')
  # The "in" of "3 in all" is no inch.
  if not (word == 'in' and rest):
    word = _CANONICAL.get(word) or _CANONICAL.get(stem(word)) or stem(word)
  return word + caret + power


def is_known(unit: str) -> bool:
  """Returns whether a word is a unit of the table, singular or plural."""
  return unit in _CANONICAL or stem(unit) in _CANONICAL


def agree(one: str, other: str) -> bool:
  """Returns whether two units from `canonical` agree, or one is missing.

  Of two rates both parts must: 5 dollars per day are not 5 dollars per week.
  One may leave out what it is counted by, as in 5 dollars, but not where both
  are measures: 10 cm/s are not 10 cm.
  """
  parts = one.split('/'), other.split('/')
  if one and other and len(parts[0]) != len(parts[1]):
    rate = max(parts, key=len)
    if not rate[0] or all(_is_measure(part) for part in rate):
      return False
  return all(
    a == b or not (a and b) or {a, b} in _TWO_MEANINGS
    for a, b in zip(*parts, strict=False)
  )


def _is_measure(unit: str) -> bool:
  return unit.partition('^')[0] in _MEASURED


def stem(word: str) -> str:
  """Returns what the singular and the plural of a word have in common."""
  if len(word) > 2:
    for pattern, replacement in _ENDINGS:
      shorter, found = pattern.subn(replacement, word)
      if found:
        return shorter
  return word
