"""Operations on jobs: request, plan, show and cancel them."""
