"""The suite `accuracy`: networks trained by a recipe, chosen on validation, tested once."""
