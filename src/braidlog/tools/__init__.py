"""Offline tools: look into a data folder, check every byte of it, mend it.

Knows: the layout that storage/ writes. Refuses to know: terminals, colours, questions to a person (cli does).
Invariant: nothing here changes a data folder but `repair`, and that only with the folder's lock held.
May import: storage, model, codec.
"""
