"""The llm node: answers transcripts, streaming, with a cache and a history that hold what was really heard."""
