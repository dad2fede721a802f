"""Scores steps and samples chains, by models here and on servers."""
