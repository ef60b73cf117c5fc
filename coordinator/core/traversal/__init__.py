"""How members reach each other: what they say of it, what others found, and who is helped to dial whom."""
