"""Turns files and domains into the batches that training reads.

readers/, domains/   make chains, from files or with known truth
chains               the records that all stages pass on
datasets, problems   make what a config names; contamination and builder
                     remove evaluation problems and store chains on disk
segments             split steps into lines or sentences
encoding, targets    turn chains into token ids and labels into targets
pipeline, shards     pack them into batches, for one process or many
verify/              judges answers, calculations and programs
"""
