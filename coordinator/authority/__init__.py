"""A secured fleet's authority: keys, certificates, tokens, broker configuration and signatures."""
