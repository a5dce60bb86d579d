"""The straight line: from a config to a trained model, its text and its files.

The packages in the order in which they are read: ``config``, ``nn``, ``tokenizer``,
``training``, ``generation``, ``checkpoints``.
"""
