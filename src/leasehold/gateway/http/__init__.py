"""The HTTP gateway: calls, headers, signatures, classification, and the address guard."""
