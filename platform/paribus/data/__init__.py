"""From files to arrays: corpora, sentences, vocabularies, rows, masks; task builders and readers."""
