"""Turns files and domains into the batches that training reads.

readers/, domains/   make chains, from files or with known truth
chains               the records that all stages pass on
datasets, problems   make what a config names; contamination and builder
                     remove evaluation problems and store chains on disk
segments             split steps into lines or sentences
encoding, targets    turn chains into token ids and labels into targets
examples, tries, census, trie_store
                     turn encoded chains into tries, counted and kept on disk
pipeline, shards     pack tries into batches, for one process or many
chain_sets           pass chains from one job to the next
critiques/           turn chains into questions to a critic, with critiques
verify/              judges answers, calculations and programs
"""
