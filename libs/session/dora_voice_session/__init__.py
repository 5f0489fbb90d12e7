"""The state of a conversation with a language model: tokens, and the KV cache of exactly those tokens."""
