"""Every project on docs/how-to/test-from-other-languages.md, set up in an empty folder and run."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.recipes import Recipe, read_recipes

pytestmark = pytest.mark.interop

RECIPES = read_recipes()


def test_the_page_has_a_recipe_for_each_language() -> None:
    assert [*RECIPES] == ["Python", "Java", "Go", "Node"]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=[*RECIPES])
def test_a_fresh_project_receives_its_first_message(tmp_path: Path, recipe: Recipe) -> None:
    if recipe.missing is not None:
        pytest.skip(recipe.missing)
    assert recipe.run(tmp_path / "project") is None
