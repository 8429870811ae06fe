"""What a store directory is and what is wrong with it, without changing it.

========================  =========================================================================
:mod:`.directory`         which files stand there: names, lengths, times
:mod:`.facts`             what they are: mode, logs, ends, tails, queues, index, who can open it
:mod:`.findings`          the closed list of what can be wrong
:mod:`.ranges`            the unit of work: one range of one file to a partial result
:mod:`.merging`           partial results to one, equal to a sequential walk for any split
:mod:`.engine`            the local engine: ranges over threads
:mod:`.manifest`          digests of a whole store as one value with a JSON form
:mod:`.compare`           where two stores differ
:mod:`.certificate`       that every message of one store is in others
:mod:`.messages`          the messages of a store
:mod:`.repair`            the one module that changes something, when it is told to
========================  =========================================================================

Everything reads through a :class:`rmqpy.store.files.FileLayer`, opens files read-only, takes no
lock and creates nothing.
"""
