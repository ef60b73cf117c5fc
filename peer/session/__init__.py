"""Keep the control stream to the coordinator open."""
