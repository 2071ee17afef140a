"""The HTTP gateway: calls, headers and signatures, classification, and the address guard."""
