"""The vocabulary: everything a user may say, as frozen and closed data. Imports pydantic and nothing heavier."""
