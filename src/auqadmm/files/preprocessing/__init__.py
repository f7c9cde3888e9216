"""Columns of many files as one matrix per worker, agreed upon without sharing rows.

summary     what one worker sends about its file: kinds of columns, categories, sums, labels, rows
merge       the summaries of all workers together give the encoding
encoding    the columns of a file → its matrix

    numbers      (x − mean) / standard deviation, both over the rows of all workers; sparse files are only scaled
    categories   one feature per category, in sorted order over all workers; all of them are kept (the penalty, not a
                 dropped level, makes the model unique) unless `drop_first` leaves out the first of each column
    missing      refused, or filled: numbers with the mean, categories with the most frequent one
"""

from auqadmm.files.preprocessing.encoding import Column, Encoding
from auqadmm.files.preprocessing.merge import Agreed, merge
from auqadmm.files.preprocessing.summary import Settings, Summary, summarize

__all__ = ["Agreed", "Column", "Encoding", "Settings", "Summary", "merge", "summarize"]
