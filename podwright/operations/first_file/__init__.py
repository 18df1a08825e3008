"""The parts of ``podwright init``: its questions, their answers, and the text of the file."""
