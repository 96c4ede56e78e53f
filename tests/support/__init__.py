"""Builders that the whole test-suite shares."""
