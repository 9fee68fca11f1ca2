"""What a run is: its settings, its folder, its dates, and what decides its bits."""
