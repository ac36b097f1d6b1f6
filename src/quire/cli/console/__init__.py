"""How commands speak and what they share: options, questions, tables, pictures, errors."""
